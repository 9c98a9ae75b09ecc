"""Exceptions <-> gRPC status: one table, used by the server and the client.

A refusal carries `google.rpc.RetryInfo` in the standard `grpc-status-details-bin` trailer, so that
any gRPC client can read the time to wait.
"""

from contextlib import suppress
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from lengthwise import errors
from lengthwise.addresses import shown
from lengthwise.errors import ScoringError, ServiceOverloaded

CODE_OF: Final[dict[type[ScoringError], grpc.StatusCode]] = {
    errors.InvalidPrompt: grpc.StatusCode.INVALID_ARGUMENT,
    ServiceOverloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ScoringTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ServiceUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.AccessDenied: grpc.StatusCode.UNAUTHENTICATED,
    ScoringError: grpc.StatusCode.INTERNAL,
}

ERROR_OF: Final[dict[grpc.StatusCode, type[ScoringError]]] = {
    **{code: error for error, code in CODE_OF.items()},
    # A stopping server cancels the calls that it could not finish within its grace period.
    grpc.StatusCode.CANCELLED: errors.ServiceUnavailable,
}
"""Error of the client for each status code; any other code is a plain ScoringError."""

DETAILS_KEY: Final = "grpc-status-details-bin"
CLIENT_KEY: Final = "x-lengthwise-client"
"""Metadata in which a caller names its client, or with commas the client of each prompt."""
_CODE_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}


def to_status(error: ScoringError) -> status_pb2.Status:
    """Return the status of `error`, with RetryInfo where the error has a time to wait."""
    code, message = CODE_OF[type(error)], str(error)
    status = status_pb2.Status(code=code.value[0], message=message)
    if isinstance(error, ServiceOverloaded) and error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        status.details.add().Pack(retry)
    return status


def from_status(status: status_pb2.Status) -> ScoringError:
    """Return the error of any status that a gRPC peer may send: the inverse of `to_status`."""
    code = _CODE_BY_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
    if (kind := ERROR_OF.get(code, ScoringError)) is ServiceOverloaded:
        return ServiceOverloaded(status.message, retry_after_s=_retry_after_s(status))
    if kind is ScoringError:
        return ScoringError(f"{code.name}: {status.message}")
    return kind(status.message)


def from_rpc_error(error: grpc.RpcError, target: str) -> ScoringError:
    """Return the error of a failed call to `target`."""
    code, message, place = error.code(), error.details() or "", shown(target)
    if code is grpc.StatusCode.UNAVAILABLE:
        return errors.ServiceUnavailable(
            f"no scoring service answers at {place} ({message}); "
            f"start one with `python -m scoring_service serve --address {target} --bundle ...`"
        )
    # The transport refuses a message beyond its limit with the status of an overload.
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        return errors.InvalidPrompt(f"{place} refused the request: {message}; send a smaller one")
    status = status_pb2.Status(code=code.value[0], message=f"{place}: {message}")
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            # With a foreign peer's trailer, code and message still describe the failure.
            with suppress(DecodeError):
                status.details.extend(status_pb2.Status.FromString(value).details)
    return from_status(status)


def _retry_after_s(status: status_pb2.Status) -> float | None:
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
            return float(retry.retry_delay.ToNanoseconds() / 1e9)
    return None
