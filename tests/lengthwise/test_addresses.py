"""Addresses get their /v1, keys a header, loopback no proxy, and errors one line."""

import os
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import urlopen

import httpx
import pytest

from lengthwise import addresses
from lengthwise.errors import ConfigError

LOCAL = (
    *("127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1", "unix:/tmp/socket", "localhost"),
    *("dns:///localhost:1", "ipv4:127.0.0.1:1", "ipv6:[::1]:1", "unix-abstract:name"),
    *("http://127.0.0.1/v1", "http://[::1]:80", "https://LOCALHOST:1/v1"),
)
REMOTE = (
    *("0.0.0.0:1", "10.0.0.1:1", "localhost.example.com:1", "[::]:1", "ipv4:127.0.0.1:1,8.8.8.8:1"),
    *("dns://8.8.8.8/localhost:1", "http://localhost@example.com", "http://example.com/localhost"),
)
DEAD = "http://127.0.0.1:9"
"""A proxy that no process serves."""


@pytest.fixture
def serve_http():
    """Address of a server on loopback that answers every GET."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def proxy(monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    return monkeypatch


def test_which_addresses_stay_on_this_machine():
    assert tuple(filter(addresses.is_loopback, LOCAL + REMOTE)) == LOCAL


def test_an_address_behind_a_proxy_is_shown_with_its_variable(proxy):
    note = f" through http_proxy={DEAD}"
    assert addresses.shown("scorer.invalid:1") == f"scorer.invalid:1{note}"
    assert addresses.shown("http://llm.invalid/v1") == f"http://llm.invalid/v1{note}"
    assert addresses.shown("https://llm.invalid") == "https://llm.invalid"
    assert [addresses.shown(address) for address in LOCAL] == [*LOCAL]
    proxy.setenv("HTTPS_PROXY", "proxy:1")
    assert (
        addresses.shown("https://llm.invalid") == "https://llm.invalid through HTTPS_PROXY=proxy:1"
    )
    proxy.setenv("no_proxy", "other, invalid")
    assert addresses.shown("scorer.invalid:1") == "scorer.invalid:1"


def test_a_program_reaches_this_machine_without_the_proxy(proxy, serve_http):
    proxy.setenv("NO_PROXY", "a.com,localhost")
    proxy.setenv("no_proxy", "")
    for _ in range(2):
        addresses.bypass_proxies()
    assert os.environ["no_proxy"] == "a.com,localhost,127.0.0.1,::1"
    assert httpx.get(serve_http).is_success
    with urlopen(serve_http, timeout=60) as response:
        assert response.status == 200
    with pytest.raises(httpx.ConnectError, match="refused"):
        httpx.get("http://llm.invalid")


def test_without_a_proxy_the_environment_stays_as_it_is(proxy):
    proxy.delenv("http_proxy")
    addresses.bypass_proxies()
    assert "no_proxy" not in os.environ


def test_an_address_without_a_path_gets_one():
    assert addresses.api_base("http://llm:8000/") == "http://llm:8000/v1"
    assert addresses.api_base("https://llm/api/v2/") == "https://llm/api/v2"
    for wrong in ("llm:8000", "ftp://llm", "http://"):
        with pytest.raises(ConfigError, match="use an address such as"):
            addresses.api_base(wrong)


def test_a_key_is_a_bearer_token():
    assert addresses.api_headers("sk-1") == {"Authorization": "Bearer sk-1"}
    assert addresses.api_headers(None) == addresses.api_headers("") == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error": {"message": "too\\nlong"}}', "too long"),
        ('{"error": "no"}', "no"),
        ('{"detail": [1]}', '{"detail": [1]}'),
        ("<html> bad \n gateway", "<html> bad gateway"),
        ("[1]", "[1]"),
        ("x" * 300, "x" * 200),
    ],
)
def test_an_error_is_one_line(body, message):
    assert addresses.error_message(body) == message
