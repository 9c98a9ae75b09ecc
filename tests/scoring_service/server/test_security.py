"""TLS, mTLS, tokens, and the refusal to serve other machines in the clear."""

import datetime
import ipaddress
import os
import time
from pathlib import Path

import pytest

from lengthwise.errors import AccessDenied, ConfigError, ServiceUnavailable
from scoring_service.client import Observed, Score, ScoringClient
from scoring_service.client.channel import ClientSecurity
from scoring_service.server.security import scrape_access
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig

x509 = pytest.importorskip("cryptography.x509")
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

DAY = datetime.timedelta(days=1)
PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates for this test."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._sign(self.name, self.key.public_key(), days=10, ca=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(PEM))

    def issue(self, name: str, *, days: float = 10) -> tuple[str, str]:
        """Certificate and key files for 127.0.0.1; expired if `days` is negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), days=days)
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(PEM))
        encryption = serialization.NoEncryption()
        files[1].write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption))
        return str(files[0]), str(files[1])

    def _sign(self, subject, public_key, *, days: float, ca: bool = False):
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 20 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self.key, hashes.SHA256())
        )


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def score(target: str, **security: str) -> float:
    with ScoringClient(target, timeout_s=60, security=ClientSecurity(**security)) as client:
        return client.score("yes").value


def tls(authority: Authority, **options) -> dict[str, str]:
    certificate, key = authority.issue("server", **options)
    return {"tls_certificate_file": certificate, "tls_key_file": key}


def test_tls_serves_who_trusts_the_signer_and_no_one_else(serve, authority, tmp_path):
    target = serve(**tls(authority)).target
    assert score(target, ca_file=str(authority.file)) < 0
    with pytest.raises(ServiceUnavailable):
        score(target)
    with pytest.raises(ServiceUnavailable):
        score(target, ca_file=str(Authority(tmp_path, "stranger").file))


def test_a_renewed_certificate_is_used_without_a_restart(serve, authority):
    target = serve(**tls(authority, days=-1)).target
    with pytest.raises(ServiceUnavailable):
        score(target, ca_file=str(authority.file))
    certificate, _ = authority.issue("server")
    os.utime(certificate, ns=(time.time_ns() + 10**9,) * 2)
    assert score(target, ca_file=str(authority.file)) < 0


def test_a_broken_renewal_keeps_the_old_certificate(serve, authority):
    settings = tls(authority)
    target = serve(**settings).target
    Path(settings["tls_certificate_file"]).write_text("garbage")
    assert score(target, ca_file=str(authority.file)) < 0


def test_mtls_serves_only_clients_with_a_certificate(serve, authority, tmp_path):
    target = serve(**tls(authority), tls_client_ca_file=str(authority.file)).target
    certificate, key = authority.issue("client")
    own = {"ca_file": str(authority.file), "certificate_file": certificate, "key_file": key}
    assert score(target, **own) < 0
    with pytest.raises(ServiceUnavailable):
        score(target, ca_file=str(authority.file))
    certificate, key = Authority(tmp_path, "stranger").issue("intruder")
    with pytest.raises(ServiceUnavailable):
        score(target, ca_file=str(authority.file), certificate_file=certificate, key_file=key)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "0.0.0.0:0"}, "allow_plaintext"),
        ({"tls_certificate_file": "/none.pem", "tls_key_file": "/none.key"}, "none.key"),
        ({"token_file": "/none"}, "/none cannot be read"),
    ],
)
def test_open_plaintext_and_unreadable_files_are_refused(tiny_model, settings, message):
    with pytest.raises(ConfigError, match=message):
        ScoringServer(tiny_model, ServerConfig(**{"address": "127.0.0.1:0"} | settings))


def test_tokens_for_scores_and_for_reports_are_not_exchangeable(serve, tmp_path):
    for name in ("score", "report"):
        (tmp_path / name).write_text(f"{name}-secret\n")
    tokens = {"token_file": str(tmp_path / "score")}
    closed = serve(**tokens).target
    opened = serve(**tokens, report_token_file=str(tmp_path / "report")).target

    def report(target: str, token: str) -> int:
        with ScoringClient(target, timeout_s=60, security=ClientSecurity(token=token)) as client:
            return client.report([Observed(Score(1.0, "r", 1, False), 5, "tiny-llm")])

    assert report(opened, "report-secret") == 0
    for target, token in ((opened, "score-secret"), (closed, "score-secret")):
        with pytest.raises(AccessDenied):
            report(target, token)
    with pytest.raises(AccessDenied):
        score(opened, token="report-secret")
    assert score(closed, token="score-secret") == score(opened, token="score-secret")


def test_metrics_are_read_with_a_token_of_their_own_where_asked(tmp_path):
    (tmp_path / "tokens").write_text("t\n")
    assert scrape_access(ServerConfig())("")
    may_read = scrape_access(ServerConfig(metrics_token_file=str(tmp_path / "tokens")))
    assert may_read("Bearer t")
    assert not may_read("")
    assert not may_read("t")
