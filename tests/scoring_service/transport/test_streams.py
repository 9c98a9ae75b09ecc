"""Streams hold no thread, and a client holds a limited number of them."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.scoring_service.attacks import open_channel
from tests.scoring_service.waiting import code_of, wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def watch(server):
    """A function that opens a watch; each has been answered once or has failed."""
    with open_channel(server.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        yield lambda: stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)


def watches_of(server):
    return next(method for method in server._direct if method.method.endswith("/Watch"))


def refused(call):
    return code_of(lambda: next(call)) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_client_has_so_many_streams(server, watch, monkeypatch):
    monkeypatch.setattr("scoring_service.transport.streams.MAX_OF_CLIENT", 3)
    opened = [watch() for _ in range(3)]
    assert all(next(call).status == SERVING for call in opened)
    assert refused(watch())
    opened.pop().cancel()
    wait_until(lambda: watches_of(server).num_open == 2)
    assert next(watch()).status == SERVING


def test_all_clients_have_so_many_streams(server, watch):
    watches_of(server).max_open = 2
    opened = [watch() for _ in range(2)]
    assert all(next(call).status == SERVING for call in opened)
    assert refused(watch())
    for call in opened:
        call.cancel()
    wait_until(lambda: not watches_of(server).num_open)
    assert not watches_of(server)._of_client
