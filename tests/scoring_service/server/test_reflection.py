"""A tool without proto files reads the services from the server, as grpcurl does."""

from contextlib import contextmanager
from queue import SimpleQueue

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2 as pb

from scoring_service.server import health, oip
from scoring_service.server.reflection import PATHS
from scoring_service.server.rpc import SERVICE
from tests.scoring_service.waiting import code_of, wait_until

LIST = pb.ServerReflectionRequest(list_services="*")


@contextmanager
def stream_of(server, path, **options):
    """A function of a request that returns the response of one stream."""
    with grpc.insecure_channel(server.target) as channel:
        sent = SimpleQueue()
        answers = channel.stream_stream(path)(iter(sent.get, None), timeout=60, **options)

        def ask(request):
            sent.put(request.SerializeToString())
            return pb.ServerReflectionResponse.FromString(next(answers))

        try:
            yield ask
        finally:
            sent.put(None)
        assert list(answers) == []


@pytest.fixture(params=PATHS)
def ask(server, request):
    with stream_of(server, request.param) as ask:
        yield ask
    wait_until(lambda: not any(method.num_open for method in server._direct))


def symbol(name):
    return pb.ServerReflectionRequest(file_containing_symbol=name)


def test_the_services_are_listed_and_described(ask):
    names = {one.name for one in ask(LIST).list_services_response.service}
    for name in names:
        assert ask(symbol(name)).file_descriptor_response.file_descriptor_proto
    ours = {SERVICE, oip.SERVICE, health.SERVICE}
    assert names == ours | {"grpc.reflection.v1alpha.ServerReflection"}


def test_an_unknown_name_is_not_found_and_the_stream_goes_on(ask):
    for request in (symbol("none"), pb.ServerReflectionRequest(file_by_filename="none.proto")):
        assert ask(request).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert ask(LIST).list_services_response.service


@pytest.mark.parametrize("wrong", [b"\xff\xff", symbol("a" * 2000).SerializeToString()])
def test_a_malformed_or_long_request_ends_the_stream(server, wrong):
    with grpc.insecure_channel(server.target) as channel:
        answers = channel.stream_stream(PATHS[0])(iter([wrong]), timeout=60)
        assert code_of(lambda: next(answers)) is grpc.StatusCode.INVALID_ARGUMENT


def test_reflection_needs_the_token_of_a_score(serve, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    server = serve(token_file=str(tokens))
    with pytest.raises(grpc.RpcError) as caught, stream_of(server, PATHS[0]) as ask:
        ask(LIST)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with stream_of(server, PATHS[0], metadata=[("authorization", "Bearer secret")]) as ask:
        assert ask(LIST).list_services_response.service


def test_a_silent_stream_is_ended(serve):
    server, silent = serve(arrival_timeout_s=0.2), SimpleQueue()
    silent.put(LIST.SerializeToString())
    with grpc.insecure_channel(server.target) as channel:
        answers = channel.stream_stream(PATHS[0])(iter(silent.get, None), timeout=60)
        assert next(answers)
        assert code_of(lambda: next(answers)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        silent.put(None)
