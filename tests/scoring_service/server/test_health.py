"""Health is answered whatever else goes on."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scoring_service.server import oip
from scoring_service.server.rpc import SERVICE

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
    server.health.is_serving = False
    assert stub.Check(ask(service), timeout=60).status == NOT_SERVING


def test_a_service_that_is_not_here_is_not_found(stub):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(ask("other"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_malformed_request_is_an_invalid_argument(channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff\xff", timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_watch_is_unimplemented_and_holds_nothing(server, stub):
    with pytest.raises(grpc.RpcError) as caught:
        next(stub.Watch(ask(), timeout=60))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
