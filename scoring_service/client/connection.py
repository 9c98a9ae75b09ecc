"""Connection to one service: the shared part of all clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc

from lengthwise.errors import ScoringError, ServiceUnavailable
from scoring_service.client.channel import PLAINTEXT, ClientSecurity, check_seconds
from scoring_service.proto.scoring_pb2_grpc import ScoringServiceStub
from scoring_service.proto.status import from_rpc_error


class Connection:
    """Channel with its stub, deadline and target model; arguments as of `ScoringClient`.

    As a context manager it closes the channel at the end.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 1.0,
        target_model: str | None = None,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        check_seconds("timeout_s", timeout_s)
        self.target = target
        self._timeout_s = timeout_s
        self._target_model = target_model or ""
        self._metadata = security.metadata
        self._channel = security.open(target)
        self._stub = ScoringServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def _options(self, timeout_s: float | None) -> dict[str, Any]:
        """Return deadline and metadata of one call; None: the client's deadline."""
        seconds = self._timeout_s if timeout_s is None else timeout_s
        return {"timeout": seconds, "metadata": self._metadata}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the errors of a call as `ScoringError`."""
        try:
            yield
        except ScoringError:
            raise
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from error
        except (grpc.FutureCancelledError, ValueError) as error:
            raise ServiceUnavailable(
                f"the client of {self.target} is closed ({error}); make another"
            ) from error

    def close(self) -> None:
        """Close the connection; calls in flight fail."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
