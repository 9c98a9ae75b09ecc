"""An endpoint that silent, endless and vanished clients cannot hold up."""

import contextlib
import http.client
import socket
import threading

import pytest

from lengthwise.errors import ConfigError
from scoring_service.transport.scrapes import ScrapeEndpoint
from tests.scoring_service.waiting import wait_until


@pytest.fixture
def serve():
    made = []

    def start(page=lambda accept: (b"up 1\n", "text/plain"), **settings):
        settings = {"timeout_s": 60} | settings
        made.append(ScrapeEndpoint("127.0.0.1", 0, page, **settings))
        return made[-1]

    yield start
    for endpoint in made:
        endpoint.close()


def get(endpoint, path="/metrics", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def test_a_scrape_gets_the_page_for_what_it_accepts(serve):
    endpoint = serve(lambda accept: (accept.encode(), "text/plain"))
    assert get(endpoint, Accept="text/x") == (200, b"text/x")
    assert get(endpoint, "/metrics?name=x")[0] == 200
    assert get(endpoint, "/secrets")[0] == 404
    assert get(endpoint, method="POST")[0] == 405


def test_who_may_not_read_gets_no_page(serve):
    endpoint = serve(may_read=lambda authorization: authorization == "Bearer t")
    assert get(endpoint)[0] == get(endpoint, Authorization="Bearer u")[0] == 401
    assert get(endpoint, Authorization="Bearer t") == (200, b"up 1\n")


def connect(endpoint, sent=b"GET /metrics HTTP/1.1\r\nHost: x\r\n"):
    connection = socket.create_connection(("127.0.0.1", endpoint.port), timeout=60)
    connection.sendall(sent)
    return connection


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_half_requests_take_no_thread_and_no_one_s_place(serve):
    endpoint, threads = serve(), threading.active_count()
    half = [connect(endpoint) for _ in range(100)]
    assert get(endpoint) == (200, b"up 1\n")
    assert threading.active_count() == threads
    assert all(is_closed(connection) for connection in half[:30])
    for connection in half:
        connection.close()


@pytest.mark.parametrize(
    "sent", [b"GET /metrics HTTP/1.1\r\n", b"x" * 20_000, b"\r\n\r\n", b"\0" * 100 + b"\r\n\r\n"]
)
def test_what_is_no_request_is_closed(serve, sent):
    endpoint = serve(timeout_s=0.1)
    with connect(endpoint, sent) as connection:
        while connection.recv(1000):
            pass
    assert get(endpoint)[0] == 200


def test_an_answer_that_nobody_reads_is_dropped(serve):
    endpoint = serve(lambda accept: (b"x" * 20_000_000, "text/plain"), timeout_s=0.2)
    connection = connect(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n")
    wait_until(lambda: endpoint._open)
    wait_until(lambda: not endpoint._open)
    connection.close()


def test_a_page_that_fails_costs_its_own_connection(serve, caplog):
    pages = [(b"up", "text/plain")]
    endpoint = serve(lambda accept: pages.pop() if accept else None)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        get(endpoint)
    assert get(endpoint, Accept="text/plain") == (200, b"up")


def test_a_taken_port_is_a_config_error_and_a_closed_one_is_free(serve):
    for _ in range(10):
        endpoint = serve()
        with pytest.raises(ConfigError, match="use another port"):
            ScrapeEndpoint("127.0.0.1", endpoint.port, lambda accept: (b"", ""), timeout_s=1)
        connections = [connect(endpoint) for _ in range(3)]  # Closed too, right after they came.
        endpoint.close()
        ScrapeEndpoint("127.0.0.1", endpoint.port, lambda accept: (b"", ""), timeout_s=1).close()
        for connection in connections:
            with connection, contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
