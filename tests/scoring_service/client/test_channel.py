"""Where a client may connect, and with what."""

import grpc
import pytest

from lengthwise.errors import ConfigError, InvalidPrompt, ServiceUnavailable
from scoring_service.client.channel import ClientSecurity, Connection, read_pem


@pytest.mark.parametrize("is_file", [False, True])
def test_a_token_never_goes_in_the_clear_to_another_machine(tmp_path, is_file):
    path = tmp_path / "token"
    path.write_text("secret\n")
    security = ClientSecurity(**{"token_file": str(path)} if is_file else {"token": "secret"})
    assert security.metadata == (("authorization", "Bearer secret"),)
    security.open("127.0.0.1:1").close()
    with pytest.raises(ConfigError, match="in the clear"):
        security.open("10.0.0.1:1")
    assert ClientSecurity().metadata == ()


def test_a_token_file_holds_a_token_and_is_given_alone(tmp_path):
    (tmp_path / "token").write_text("")
    with pytest.raises(ConfigError, match="holds no token"):
        ClientSecurity(token_file=str(tmp_path / "token")).open("127.0.0.1:5")
    with pytest.raises(ConfigError, match="set one of them"):
        ClientSecurity(token="t", token_file="f")


@pytest.mark.parametrize(
    "fields", ["certificate_file", "ca_file key_file", "key_file certificate_file"]
)
def test_files_that_belong_together_come_together(fields):
    with pytest.raises(ConfigError, match="certificate_file"):
        ClientSecurity(**dict.fromkeys(fields.split(), "a.pem"))


def test_what_is_no_pem_file_is_refused(tmp_path):
    path = tmp_path / "file.pem"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_pem(str(path))
    path.write_text("hello")
    with pytest.raises(ConfigError, match="no PEM block"):
        read_pem(str(path))
    path.write_text("-----BEGIN CERTIFICATE-----")
    assert read_pem(str(path)).startswith(b"-----BEGIN")


def test_a_token_is_not_shown():
    assert "secret" not in repr(ClientSecurity(token="secret"))


@pytest.fixture
def connection():
    made = Connection("127.0.0.1:1", security=ClientSecurity(token="t"), timeout_s=2.0)
    yield made
    made.close()


@pytest.mark.parametrize("error", [ValueError("closed"), grpc.FutureCancelledError()])
def test_a_closed_channel_is_unavailable(connection, error):
    with pytest.raises(ServiceUnavailable, match="is closed"), connection._errors():
        raise error


@pytest.mark.parametrize("error", [InvalidPrompt("no text"), KeyError()])
def test_other_errors_pass_unchanged(connection, error):
    with pytest.raises(type(error)) as caught, connection._errors():
        raise error
    assert caught.value is error
