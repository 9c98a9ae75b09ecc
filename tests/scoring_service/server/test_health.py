"""Health is answered whatever else goes on, and watchers cost no place."""

import queue
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scoring_service.client import Score
from scoring_service.server import oip
from scoring_service.server.rpc import SERVICE
from tests.scoring_service.waiting import wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.target) as channel:
        yield channel


@pytest.fixture
def stub(channel):
    return health_pb2_grpc.HealthStub(channel)


def ask(service=""):
    return health_pb2.HealthCheckRequest(service=service)


class Watch:
    """What a watcher is told, as it comes."""

    def __init__(self, stub, service=""):
        self.told = queue.SimpleQueue()
        self.call = stub.Watch(ask(service), timeout=60)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for answer in self.call:
                self.told.put(answer.status)
        except grpc.RpcError as error:
            self.told.put(error.code())

    def next(self):
        return self.told.get(timeout=60)


@pytest.mark.parametrize("service", ["", SERVICE, oip.SERVICE])
def test_every_service_has_a_health(stub, service):
    assert stub.Check(ask(service), timeout=60).status == SERVING
    assert Watch(stub, service).next() == SERVING


def test_a_service_that_is_not_here_is_not_found_and_unknown(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(ask("other"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert Watch(stub, "other").next() == UNKNOWN


def test_watchers_are_told_of_each_change_and_of_the_end(server, stub):
    watches = [Watch(stub), Watch(stub, SERVICE)]
    for watch in watches:
        assert watch.next() == SERVING
    for serving, status in ((False, NOT_SERVING), (False, None), (True, SERVING)):
        server.health.set_serving(serving)
        for watch in watches if status is not None else []:
            assert watch.next() == status
    server.health.close()
    for watch in watches:
        assert watch.next() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_a_malformed_request_is_an_invalid_argument(channel, method):
    call = channel.unary_stream(f"/grpc.health.v1.Health/{method}")(b"\xff\xff", timeout=60)
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_thousand_watchers_that_come_and_go_cost_nobody_a_place(server, client):
    threads = threading.active_count()
    for number in range(1000):
        if number % 100 == 0:
            channel = grpc.insecure_channel(server.target)
            stub = health_pb2_grpc.HealthStub(channel)
        call = stub.Watch(ask(), timeout=60)
        if number % 3 == 0:
            assert next(call).status == SERVING
        if number % 3 != 1:
            call.cancel()
        if number % 50 == 0:
            assert stub.Check(ask(), timeout=60).status == SERVING
            assert isinstance(client.score(f"poem {number}"), Score)
        if number % 100 == 99:
            channel.close()  # Calls that were left open break off with their connection.
    assert threading.active_count() <= threads + 20  # The clients' own.
    wait_until(lambda: not server.health._watchers and not any(m.num_open for m in server._direct))
    assert server.health._watchers.max_calls >= 1000


def test_of_too_many_watchers_the_oldest_watches_again(server, stub, monkeypatch):
    monkeypatch.setattr(server.health._watchers, "max_calls", 3)
    watches = []
    for _ in range(5):
        watches.append(Watch(stub))
        assert watches[-1].next() == SERVING
    for watch in watches[:2]:
        assert watch.next() is grpc.StatusCode.UNAVAILABLE
    server.health.set_serving(False)
    for watch in watches[2:]:
        assert watch.next() == NOT_SERVING
