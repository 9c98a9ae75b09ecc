"""A call is authenticated, answered and counted alike on every way in."""

import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lengthwise.errors import AccessDenied, InvalidPrompt
from scoring_service.client import ScoringClient
from scoring_service.client.channel import ClientSecurity
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.status import CLIENT_KEY
from scoring_service.server.call_lifecycle import CallLifecycle, Method, parse
from scoring_service.server.metrics import Metrics
from scoring_service.server.rpc import scoring_methods
from scoring_service.server.security import BearerTokens
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import ScoringService
from scoring_service.transport.limits import Workers


@pytest.fixture
def calls(tiny_model):
    service = ScoringService(tiny_model, ServerConfig())
    workers = Workers(1, max_tasks=1, max_bytes=1000)
    yield CallLifecycle(service, Metrics(service), workers)
    workers.close()


class Direct:
    """A call without a wire."""

    def __init__(self):
        self.code, self.metadata, self.deadline_s, self.answer = None, (), None, None
        self.ended = threading.Event()
        self.caller = "here"

    def respond(self, message):
        self.answer = message
        self.ended.set()

    def fail(self, code, details, trailing=None):
        self.code, self.details = code, details
        self.ended.set()


def test_a_large_request_is_read_by_a_worker_or_refused_if_many(calls):
    def read(request):
        threads.append(threading.current_thread().name)
        return methods["Score"].read(request)

    threads, methods = [], scoring_methods(calls.service)
    take = calls.handler("Score", Method(pb.ScoreRequest, read, max_inline_bytes=10))
    small, large = Direct(), Direct()
    take(small, pb.ScoreRequest(prompt="yes").SerializeToString())
    take(large, pb.ScoreRequest(prompt="yes " * 100).SerializeToString())
    assert small.ended.wait(60)
    assert large.ended.wait(60)
    assert threads[0] == threading.current_thread().name
    assert threads[1].startswith("worker")

    gate, begun, refused = threading.Event(), threading.Event(), Direct()
    assert calls.workers.submit(1, lambda: (begun.set(), gate.wait(60)))
    assert begun.wait(60)
    take(refused, pb.ScoreRequest(prompt="yes " * 100).SerializeToString())
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not calls.admission("ScoreBatch", needs_worker=True)(Direct())
    assert calls.admission("Score") is None
    gate.set()


@pytest.mark.parametrize(("given_s", "expected_s"), [(2.0, 2.0), (None, 10.0)])
def test_a_call_without_a_deadline_has_the_services(calls, monkeypatch, given_s, expected_s):
    begun = []
    monkeypatch.setattr(calls.service, "begin", lambda *arguments: begun.append(arguments[2]))
    direct, before_s = Direct(), time.monotonic()
    direct.deadline_s = None if given_s is None else before_s + given_s
    method = scoring_methods(calls.service)["Score"]
    calls.handle("Score", method, direct, pb.ScoreRequest(prompt="yes").SerializeToString())
    assert before_s + expected_s <= begun[0].deadline_s <= time.monotonic() + expected_s


@pytest.mark.parametrize(
    ("names", "clients"),
    [
        ((), [("token 1", "")] * 2),
        (("a",), [("token 1", "a")] * 2),
        (("a,b", "c"), [("token 1", "a"), ("token 1", "b")]),
        (("a,b,c",), [("token 1", "")] * 2),
        (("x" * 99,), [("token 1", "x" * 64)] * 2),
    ],
)
def test_a_caller_may_name_the_clients_of_its_prompts(calls, monkeypatch, names, clients):
    begun, request = [], pb.ScoreBatchRequest(prompts=["yes", "no"]).SerializeToString()
    monkeypatch.setattr(calls.service, "begin", lambda *arguments: begun.append(arguments[2]))
    direct = Direct()
    direct.metadata = [("authorization", "Bearer two"), *((CLIENT_KEY, name) for name in names)]
    calls.tokens = BearerTokens(["one", "two"])
    method = scoring_methods(calls.service)["ScoreBatch"]
    assert calls.admission("ScoreBatch", needs_worker=True)(direct)
    calls.handle("ScoreBatch", method, direct, request)
    (call,) = begun
    assert [tuple(each) for each in call.owners or [call.client] * 2] == clients


def test_bytes_that_are_no_message_are_an_invalid_prompt():
    with pytest.raises(InvalidPrompt, match=r"not a lengthwise\.scoring\.v1\.ScoreRequest"):
        parse(pb.ScoreRequest, b"\xff\xff")


WAYS = {
    "Score": lambda client: client.score("yes"),
    "ScoreBatch": lambda client: client._call("ScoreBatch", pb.ScoreBatchRequest(prompts="y"), 60),
    "Info": lambda client: client.info(),
}


@pytest.mark.parametrize("token", ["first", "second", "firs", None])
def test_a_token_is_asked_for_in_every_way_but_not_for_health(serve, tmp_path, token):
    (tmp_path / "tokens").write_text("first\nsecond\n")
    server = serve(token_file=str(tmp_path / "tokens"))
    with ScoringClient(server.target, timeout_s=60, security=ClientSecurity(token=token)) as client:
        for ask in WAYS.values():
            if token in ("first", "second"):
                assert ask(client)
                continue
            with pytest.raises(AccessDenied, match="bearer token"):
                ask(client)
    with grpc.insecure_channel(server.target) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        status = check(health_pb2.HealthCheckRequest(), timeout=60).status
    assert status == health_pb2.HealthCheckResponse.SERVING
