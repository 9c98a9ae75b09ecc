"""Access to the server: TLS and mTLS with certificate reload, bearer tokens, loopback."""

import hmac
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import grpc

from lengthwise.errors import AccessDenied, ConfigError
from scoring_service.client.channel import is_loopback, read_pem, read_secrets
from scoring_service.proto.status import abort
from scoring_service.service.config import ServerConfig

_log = logging.getLogger(__name__)


def server_credentials(config: ServerConfig) -> grpc.ServerCredentials | None:
    """TLS credentials that follow their files; None where plaintext is allowed.

    Raises:
        ConfigError: plaintext off this machine that was not asked for, or an unreadable file.
    """
    if config.tls_certificate_file is None:
        if not is_loopback(config.address) and not config.allow_plaintext:
            raise ConfigError(
                f"{config.address} is reachable from other machines and would be plaintext; set "
                "tls_certificate_file and tls_key_file, or allow_plaintext if a mesh encrypts"
            )
        return None
    files = _CertificateFiles(config)
    requires_client = config.tls_client_ca_file is not None
    return grpc.dynamic_ssl_server_credentials(files.read(), files.read_if_changed, requires_client)


class _CertificateFiles:
    """A server's PEM files, read again when they change: a renewal needs no restart."""

    def __init__(self, config: ServerConfig) -> None:
        given = (config.tls_key_file, config.tls_certificate_file, config.tls_client_ca_file)
        self._paths = [path for path in given if path is not None]
        self._stamp = self._stamp_now()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """The certificates as they are now. Raises ConfigError."""
        key, certificate, *client_ca = map(read_pem, self._paths)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], *client_ca)

    def read_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None keeps what it has."""
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return None
            configuration = self.read()
        except (ConfigError, OSError) as error:
            _log.error("the certificate cannot be renewed, the old one stays: %s", error)
            return None
        self._stamp = stamp
        _log.info("read the renewed certificate %s", self._paths[1])
        return configuration

    def _stamp_now(self) -> list[tuple[int, int, int]]:
        try:
            stats = [Path(path).stat() for path in self._paths]
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read; give a PEM file") from error
        return [(stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats]


class BearerTokens(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without one of the tokens in a file, one per line.

    Raises:
        ConfigError: the file cannot be read or holds no token.
    """

    def __init__(self, path: str) -> None:
        self._accepted = [f"Bearer {token}".encode() for token in read_secrets(path)]

    def intercept_service(
        self, continuation: Callable[[Any], Any], call: grpc.HandlerCallDetails
    ) -> Any:
        """For the methods that grpcio serves itself: streams."""
        handler = continuation(call)
        if handler is None:
            return handler
        try:
            self.check(call.invocation_metadata)
        except AccessDenied as denied:
            return _deny(denied)
        return handler

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> int:
        """The number of the token in a call's metadata. Raises AccessDenied if it is none."""
        sent = next((value for key, value in metadata if key == "authorization"), "")
        given = sent if isinstance(sent, bytes) else sent.encode()
        # Every token is compared, so that the time taken reveals nothing.
        matches = [hmac.compare_digest(given, accepted) for accepted in self._accepted]
        if not any(matches):
            raise AccessDenied("no valid bearer token came with the call; send one")
        return matches.index(True)

    def __len__(self) -> int:
        return len(self._accepted)


class Nobody:
    """Refuses every call."""

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> NoReturn:
        """Raises AccessDenied."""
        raise AccessDenied(
            "reports are not taken here; start the service with report_token_file, and send one of "
            "its tokens"
        )


Access: TypeAlias = BearerTokens | Nobody


def report_access(config: ServerConfig) -> Access | None:
    """Who may report lengths; None: everybody. A token for scores is none for reports."""
    if config.report_token_file is not None:
        return BearerTokens(config.report_token_file)
    return None if config.token_file is None else Nobody()


def scrape_access(config: ServerConfig) -> Callable[[str], bool]:
    """Decides by an Authorization header who may read the metrics; everybody without a token."""
    if config.metrics_token_file is None:
        return lambda authorization: True
    tokens = BearerTokens(config.metrics_token_file)

    def may_read(authorization: str) -> bool:
        with suppress(AccessDenied):
            tokens.check([("authorization", authorization)])
            return True
        return False

    return may_read


def _deny(denied: AccessDenied) -> grpc.RpcMethodHandler:
    """A handler that ends each stream with that error."""

    def end(request: object, context: grpc.ServicerContext) -> NoReturn:
        abort(context, denied)

    return grpc.stream_stream_rpc_method_handler(end)
