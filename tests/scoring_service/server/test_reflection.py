"""Reflection describes the services where it is asked for, and holds nothing up."""

import threading
import time

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from scoring_service.client import Score, ScoringClient
from scoring_service.server import oip
from scoring_service.server.reflection import MAX_CALLS, SERVICE_NAME
from scoring_service.server.rpc import SERVICE
from tests.scoring_service.waiting import no_messages

METHOD = f"/{SERVICE_NAME}/ServerReflectionInfo"


@pytest.fixture
def describing(serve):
    return serve(reflection=True, drain_grace_s=0.2)


def test_reflection_is_off_by_default(server):
    with grpc.insecure_channel(server.target) as channel:
        call = channel.stream_stream(METHOD)(iter([b""]), timeout=60)
        assert call.code() is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_describes_every_service(describing):
    with grpc.insecure_channel(describing.target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        names = {SERVICE, oip.SERVICE, "grpc.health.v1.Health", SERVICE_NAME}
        assert set(database.get_services()) == names
        asked = [
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
            for name in (*sorted(names), "not.Here")
        ]
        call = channel.stream_stream(METHOD)(
            (request.SerializeToString() for request in asked), timeout=60
        )
        answers = [reflection_pb2.ServerReflectionResponse.FromString(raw) for raw in call]
    assert [a.HasField("file_descriptor_response") for a in answers] == [True] * 4 + [False]


def test_malformed_and_silent_requests_do_not_hold_up_the_end(describing):
    channels = [grpc.insecure_channel(describing.target) for _ in range(10)]
    gate = threading.Event()

    def malformed(number):
        yield b"\xff\xff"
        if number % 2:
            gate.wait(60)

    calls = [
        channel.stream_stream(METHOD)(malformed(number), timeout=60)
        for channel in channels
        for number in range(4)
    ]
    code = grpc.StatusCode  # Cancelled is one that made room for a later call.
    allowed = {code.INVALID_ARGUMENT, code.RESOURCE_EXHAUSTED, code.CANCELLED}
    assert {call.code() for call in calls} <= allowed
    silent = [channel.stream_stream(METHOD)(no_messages(gate), timeout=60) for channel in channels]
    begun_s = time.monotonic()
    with ScoringClient(describing.target, timeout_s=60) as client:
        assert isinstance(client.score("yes"), Score)
    describing.stop()
    assert time.monotonic() - begun_s < 30
    gate.set()
    # A channel that is closed before its calls have ended ends its thread by an error.
    assert all(call.code() is not None for call in silent)
    for channel in channels:
        channel.close()


def test_the_most_silent_call_makes_room(describing):
    gate = threading.Event()

    def then_silent():
        yield reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
        gate.wait(60)

    with grpc.insecure_channel(describing.target) as channel:
        calls = []
        for _ in range(MAX_CALLS + 1):
            calls.append(channel.stream_stream(METHOD)(then_silent(), timeout=60))
            next(calls[-1])
        assert calls[0].code() is grpc.StatusCode.CANCELLED
        gate.set()
        for call in calls[1:]:
            assert list(call) == []
