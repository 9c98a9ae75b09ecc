"""Health is answered whatever else goes on."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scoring_service.server import oip
from scoring_service.server.rpc import SERVICE
from tests.scoring_service.waiting import code_of, wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.target) as channel:
        yield channel


@pytest.fixture
def stub(channel):
    return health_pb2_grpc.HealthStub(channel)


def ask(service=""):
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", SERVICE, oip.SERVICE])
def test_every_service_has_a_health(server, stub, service):
    assert stub.Check(ask(service), timeout=60).status == SERVING
    server.health.set_serving(False)
    assert stub.Check(ask(service), timeout=60).status == NOT_SERVING


def test_a_service_that_is_not_here_is_not_found(stub):
    assert code_of(lambda: stub.Check(ask("other"), timeout=60)) is grpc.StatusCode.NOT_FOUND


def test_a_malformed_request_is_an_invalid_argument(channel):
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert code_of(lambda: check(b"\xff\xff", timeout=60)) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_watch_gets_the_status_and_each_change(server, stub):
    statuses = stub.Watch(ask(SERVICE), timeout=60)
    assert next(statuses).status == SERVING
    for _ in range(3):
        server.health.set_serving(False)
        assert next(statuses).status == NOT_SERVING
        server.health.set_serving(False)  # no change
        server.health.set_serving(True)
        assert next(statuses).status == SERVING
    statuses.cancel()
    wait_until(lambda: not server.health._watches and not any_open(server))


def test_a_watch_of_an_unknown_service_says_so(server, stub):
    statuses = stub.Watch(ask("other"), timeout=60)
    assert next(statuses).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    statuses.cancel()


def test_a_watch_sees_the_end_and_does_not_delay_it(serve):
    server = serve(drain_grace_s=600)
    with grpc.insecure_channel(server.target) as channel:
        statuses = health_pb2_grpc.HealthStub(channel).Watch(ask(), timeout=60)
        assert next(statuses).status == SERVING
        server.stop()
        assert next(statuses).status == NOT_SERVING
        assert code_of(lambda: next(statuses)) is grpc.StatusCode.UNAVAILABLE
    assert not any_open(server)


def any_open(server):
    return any(method.num_open for method in server._direct)
