"""The way of every call, however it came in: token, deadline, answer or status, counts.

A unary call on a thread, one without a thread, a stream and the Open Inference Protocol all pass
through `Calls`; the files of these say only how messages are read and written.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from scoring_service.errors import InvalidPrompt, ScoringError
from scoring_service.proto.status import CODE_OF, abort, to_status, trailing_metadata
from scoring_service.server.direct import FOREVER_S, DirectCall
from scoring_service.server.metrics import Metrics
from scoring_service.server.security import BearerTokens
from scoring_service.service.batching import Call
from scoring_service.service.scoring import CallAnswer, ScoringService

_FAILED: Final = "the service failed; its log says how"
_log = logging.getLogger(__name__)
Context: TypeAlias = grpc.ServicerContext


class Calls:
    """Access, deadlines, errors and counts of the calls of one server.

    Args:
        tokens: asked for calls without a thread, which pass no interceptor; None accepts all.
    """

    def __init__(
        self, service: ScoringService, metrics: Metrics, tokens: BearerTokens | None = None
    ) -> None:
        self.service = service
        self._metrics = metrics
        self._tokens = tokens

    def unary(
        self, handle: Callable[[Any, Context], Message], request_type: type[Message]
    ) -> grpc.RpcMethodHandler:
        """Make the handler of a method on a thread.

        Requests come as bytes and are parsed here: gRPC itself would answer INTERNAL to malformed
        ones.
        """
        method = request_type.DESCRIPTOR.name.removesuffix("Request")

        def call(serialized: bytes, context: Context) -> Message:
            try:
                response = handle(parse(request_type, serialized), context)
            except Exception as error:
                abort(context, self.failed(method, error))
            self.succeeded(method)
            return response

        return grpc.unary_unary_rpc_method_handler(call, response_serializer=serialize)

    def direct(
        self,
        direct: DirectCall,
        serialized: bytes,
        request_type: type[Message],
        begin: Callable[[Any, Call, Callable[[CallAnswer], None]], object],
        write: Callable[[CallAnswer], Message],
    ) -> None:
        """Serve a call without a thread.

        Args:
            begin: gets the request, its caller and what to call with the answer.
            write: makes the response of an answer; what it raises is the call's error.
        """
        method = request_type.DESCRIPTOR.name.removesuffix("Request")

        def end(answer: CallAnswer) -> None:
            try:
                response = serialize(write(answer))
            except Exception as error:
                self._fail(direct, method, error)
                return
            direct.respond(response)
            self._metrics.observe(answer)
            self.succeeded(method)

        try:
            if self._tokens is not None:
                self._tokens.check(direct.metadata)
            call = self.caller(direct.deadline_s)
            direct.on_cancel = call.cancel
            begin(parse(request_type, serialized), call, end)
        except ScoringError as error:
            self._fail(direct, method, error)

    def score(self, prompts: Sequence[str], target_model: str, call: Call) -> CallAnswer:
        """The scores of a call's prompts, counted. Raises as `ScoringService.score_batch`."""
        answer = self.service.score_batch(prompts, target_model, call)
        self._metrics.observe(answer)
        return answer

    def caller(self, deadline_s: float | None) -> Call:
        """A caller with that deadline, on `time.monotonic`; None: the service's default."""
        if deadline_s is None:
            deadline_s = time.monotonic() + self.service.config.default_deadline_s
        return Call(deadline_s)

    def caller_of(self, context: Context) -> Call:
        """The caller behind a gRPC context: its deadline, and its cancellation."""
        left_s = context.time_remaining()
        is_limited = left_s is not None and left_s <= FOREVER_S
        call = self.caller(time.monotonic() + left_s if is_limited else None)
        if not context.add_callback(call.cancel):
            call.cancel()
        return call

    def succeeded(self, method: str) -> None:
        """Count a call that was answered."""
        self._metrics.count_call(method, "OK")

    def failed(self, method: str, error: Exception) -> ScoringError:
        """Count a call that failed; returns what its caller is told."""
        told = told_of(method, error)
        self._metrics.count_call(method, CODE_OF[type(told)].name)
        return told

    def _fail(self, direct: DirectCall, method: str, error: Exception) -> None:
        told = self.failed(method, error)
        status = to_status(told)
        direct.fail(CODE_OF[type(told)], status.message, trailing_metadata(status))


def told_of(what: str, error: Exception) -> ScoringError:
    """The error that a caller is told: a defect of the service is logged and not shown."""
    if isinstance(error, ScoringError):
        return error
    _log.error("%s failed", what, exc_info=error)
    return ScoringError(_FAILED)


def parse(request_type: type[Message], serialized: bytes) -> Any:
    """Bytes as a message. Raises InvalidPrompt if they are not one."""
    try:
        return request_type.FromString(serialized)
    except DecodeError as error:
        raise InvalidPrompt(
            f"the request is not a {request_type.DESCRIPTOR.full_name} ({error}); "
            "prompts must be UTF-8"
        ) from error


def serialize(message: Message) -> bytes:
    """A message as bytes."""
    return bytes(message.SerializeToString())
