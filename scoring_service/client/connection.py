"""A connection to one service: what the synchronous, asyncio and fail-open clients share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from scoring_service.client.channel import ClientSecurity, check_seconds
from scoring_service.errors import ScoringError, ServiceUnavailable
from scoring_service.proto.scoring_pb2_grpc import ScoringServiceStub
from scoring_service.proto.status import from_rpc_error


class Connection:
    """A channel with its stub, deadline and target model.

    Args:
        target: HOST:PORT or any gRPC target.
        target_model: whose response lengths are to be estimated; None: no estimate.
        security: TLS and token.
        for_asyncio: whether its calls are awaited.
        **seconds: the deadline of each call, under the name that the user knows it by.

    Raises:
        ConfigError: no target, or a deadline that no call can keep.
    """

    def __init__(
        self,
        target: str,
        target_model: str | None,
        security: ClientSecurity,
        *,
        for_asyncio: bool = False,
        **seconds: float,
    ) -> None:
        ((name, self.timeout_s),) = seconds.items()
        check_seconds(name, self.timeout_s)
        self.target = target
        self.target_model = target_model or ""
        self.metadata = security.metadata
        self.channel: Any = security.open_async(target) if for_asyncio else security.open(target)
        self.stub = ScoringServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def options(self, timeout_s: float | None) -> dict[str, Any]:
        """Deadline and metadata of one call; None: the client's deadline."""
        seconds = self.timeout_s if timeout_s is None else timeout_s
        return {"timeout": seconds, "metadata": self.metadata}

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raises what goes wrong in a call as a `ScoringError`."""
        try:
            yield
        except ScoringError:
            raise
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from error
        except (grpc.FutureCancelledError, grpc.aio.UsageError, ValueError) as error:
            raise ServiceUnavailable(
                f"the client of {self.target} is closed ({error}); make another"
            ) from error
