"""Access to the server: TLS and mTLS with certificate reload, bearer tokens."""

import hmac
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import grpc

from lengthwise.addresses import is_loopback
from lengthwise.errors import AccessDenied, ConfigError
from scoring_service.client.channel import read_pem, read_secrets
from scoring_service.service.config import ServerConfig

_NO_TOKEN: Final = "no valid bearer token came with the call; send one"
_NO_REPORTS: Final = (
    "reports are not accepted here; start the service with report_token_file, and send one of its "
    "tokens"
)
_log = logging.getLogger(__name__)


def server_credentials(config: ServerConfig) -> grpc.ServerCredentials | None:
    """Return TLS credentials that are renewed with their files; None where plaintext is allowed."""
    if config.tls_certificate_file is None:
        if not is_loopback(config.address) and not config.allow_plaintext:
            raise ConfigError(
                f"{config.address} is reachable from other machines and would be plaintext; set "
                "tls_certificate_file and tls_key_file, or allow_plaintext if a mesh encrypts"
            )
        return None
    given = (config.tls_key_file, config.tls_certificate_file, config.tls_client_ca_file)
    paths = [path for path in given if path is not None]
    stamp = _stamp(paths)

    def read() -> grpc.ServerCertificateConfiguration:
        key, certificate, *client_ca = map(read_pem, paths)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], *client_ca)

    def read_if_changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal stamp
        try:
            if (present := _stamp(paths)) == stamp:
                return None
            configuration = read()
        except ConfigError as error:
            _log.error("the certificate cannot be renewed, the old one stays: %s", error)
            return None
        stamp = present
        _log.info("read the renewed certificate %s", config.tls_certificate_file)
        return configuration

    # gRPC calls the function before each handshake.
    requires_client = config.tls_client_ca_file is not None
    return grpc.dynamic_ssl_server_credentials(read(), read_if_changed, requires_client)


def _stamp(paths: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return a value that changes with any of the files. Raises ConfigError."""
    try:
        stats = [Path(path).stat() for path in paths]
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read; give a PEM file") from error
    return [(stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats]


class BearerTokens:
    """Accepted bearer tokens; without any, every call is refused."""

    def __init__(self, tokens: Sequence[str], refusal: str = _NO_TOKEN) -> None:
        self._accepted = [f"Bearer {token}".encode() for token in tokens]
        self._refusal = refusal

    def check(self, metadata: Iterable[tuple[str, str | bytes]]) -> int:
        """Return the number of the token in a call's metadata. Raises AccessDenied without one."""
        sent = next((value for key, value in metadata if key == "authorization"), "")
        if (found := self.find(sent)) is None:
            raise AccessDenied(self._refusal)
        return found

    def find(self, authorization: str | bytes) -> int | None:
        """Return the number of the token in an Authorization header, or None."""
        sent = authorization if isinstance(authorization, bytes) else authorization.encode()
        # Every token is compared, so that the time taken reveals nothing.
        matches = [hmac.compare_digest(sent, accepted) for accepted in self._accepted]
        return matches.index(True) if any(matches) else None


def read_tokens(path: str | None) -> BearerTokens | None:
    """Return the tokens of a file, one per line. Raises ConfigError if it holds none."""
    return None if path is None else BearerTokens(read_secrets(path))


def report_access(config: ServerConfig) -> BearerTokens | None:
    """Return the tokens accepted for reports; None accepts every report."""
    if config.report_token_file is None and config.token_file is not None:
        return BearerTokens((), _NO_REPORTS)
    return read_tokens(config.report_token_file)


def scrape_access(config: ServerConfig) -> Callable[[str], bool]:
    """Return the check of a scrape's Authorization header; it accepts all without a token file."""
    tokens = read_tokens(config.metrics_token_file)
    return lambda authorization: tokens is None or tokens.find(authorization) is not None
