"""Connections of the clients: plaintext to this machine, TLS and a bearer token elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

import grpc

from lengthwise.addresses import is_loopback
from lengthwise.errors import ConfigError, ServiceUnavailable, raised_as
from lengthwise.settings import Range, checked
from scoring_service.proto.scoring_pb2_grpc import ScoringServiceStub
from scoring_service.proto.status import from_rpc_error

OPTIONS: Final = (
    # Detect a dead peer within seconds instead of TCP's minutes.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # Reconnect soon after the service is up again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also the time limit for connecting; a busy machine needs more than 100 ms for it.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
Deadline = Annotated[float, Range(above=0, below=1e9)]
"""Seconds of a call: gRPC counts nanoseconds in 64 bits, which a longer time overflows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSecurity:
    """Certificates and token of a client. Without files: plaintext."""

    ca_file: str | None = None
    """PEM certificates that sign the server's certificate; set it to use TLS."""
    certificate_file: str | None = None
    """PEM certificate of this client, for a server with mTLS."""
    key_file: str | None = None
    """PEM private key of that certificate."""
    token: str | None = field(default=None, repr=False)
    """Bearer token; sent only over TLS or to this machine."""
    token_file: str | None = None
    """File whose first line is the token: the list of processes does not show it."""

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ConfigError("certificate_file and key_file belong together; set both or none")
        if self.certificate_file is not None and self.ca_file is None:
            raise ConfigError("certificate_file needs TLS; set ca_file too")
        if self.token is not None and self.token_file is not None:
            raise ConfigError("there are token and token_file; set one of them")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call. Raises ConfigError if the token's file holds none."""
        token = self.token if self.token_file is None else read_secrets(self.token_file)[0]
        return () if token is None else (("authorization", f"Bearer {token}"),)

    def open(self, target: str) -> grpc.Channel:
        """Open a channel. Raises ConfigError e.g. for a token without TLS to another machine."""
        if not isinstance(target, str) or not target:
            raise ConfigError(f"target is {target!r}; give HOST:PORT or another gRPC target")
        options = (*OPTIONS, ("grpc.enable_http_proxy", int(not is_loopback(target))))
        if self.ca_file is None:
            if self.metadata and not is_loopback(target):
                raise ConfigError(
                    f"the token would reach {target} in the clear; set ca_file for TLS"
                )
            return grpc.insecure_channel(target, options=options)
        files = (self.ca_file, self.key_file, self.certificate_file)
        pems = (None if path is None else read_pem(path) for path in files)
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(*pems), options=options)


PLAINTEXT: Final = ClientSecurity()


class Connection:
    """Channel with its stub, deadline and target model; a context manager that closes it."""

    @checked
    def __init__(
        self,
        target: str,
        *,
        timeout_s: Deadline = 1.0,
        target_model: str | None = None,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self.target = target
        self._timeout_s = timeout_s
        self._target_model = target_model or ""
        self._metadata = security.metadata
        self._channel = security.open(target)
        self._stub = ScoringServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def _options(self, timeout_s: float | None) -> dict[str, Any]:
        seconds = self._timeout_s if timeout_s is None else timeout_s
        return {"timeout": seconds, "metadata": self._metadata}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
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


def read_secrets(path: str) -> list[str]:
    """Return the tokens or keys of a file, one per line. Raises ConfigError if it holds none."""
    why = f"{path} cannot be read ({{}}); give a text file"
    with raised_as(ConfigError, why, OSError, UnicodeDecodeError):
        lines = Path(path).read_text().splitlines()
    if not (secrets := [line.strip() for line in lines if line.strip()]):
        raise ConfigError(f"{path} holds no token; write one per line")
    return secrets


def read_pem(path: str) -> bytes:
    """Return the bytes of a PEM file. Raises ConfigError if it cannot be read or is not PEM."""
    with raised_as(ConfigError, f"{path} cannot be read ({{}}); give a PEM file", OSError):
        content = Path(path).read_bytes()
    if b"-----BEGIN" not in content:
        raise ConfigError(f"{path} holds no PEM block; give a PEM file")
    return content
