"""A call is authenticated, answered and counted alike, whichever way it came in."""

from __future__ import annotations

import time

import grpc
import pytest

from scoring_service.client import Score, ScoringClient
from scoring_service.client.channel import ClientSecurity
from scoring_service.errors import AccessDenied, InvalidPrompt, ScoringError
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.server.calls import Calls, parse, told_of
from scoring_service.server.metrics import Metrics
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import ScoringService


@pytest.fixture
def calls(tiny_model):
    service = ScoringService(tiny_model, ServerConfig(default_deadline_s=5.0))
    return Calls(service, Metrics(service))


class Context:
    def __init__(self, left_s, is_open=True):
        self.left_s, self.is_open, self.callbacks = left_s, is_open, []

    def time_remaining(self):
        return self.left_s

    def add_callback(self, callback):
        self.callbacks.append(callback)
        return self.is_open


@pytest.mark.parametrize(("left_s", "expected_s"), [(2.0, 2.0), (None, 5.0), (9.2e9, 5.0)])
def test_a_caller_without_a_deadline_has_the_services(calls, left_s, expected_s):
    before_s = time.monotonic()
    call = calls.caller_of(Context(left_s))
    assert before_s + expected_s <= call.deadline_s <= time.monotonic() + expected_s


def test_a_caller_that_is_gone_already_is_cancelled(calls):
    assert calls.caller_of(Context(1.0, is_open=False)).cancelled
    context = Context(1.0)
    call = calls.caller_of(context)
    assert not call.cancelled
    context.callbacks[0]()
    assert call.cancelled


def test_a_defect_is_logged_and_not_shown(caplog):
    told = told_of("Score", KeyError("secret"))
    assert type(told) is ScoringError
    assert "secret" not in str(told)
    assert "secret" in caplog.text
    error = InvalidPrompt("empty")
    assert told_of("Score", error) is error


def test_bytes_that_are_no_message_are_an_invalid_prompt():
    with pytest.raises(InvalidPrompt, match=r"not a lengthwise\.scoring\.v1\.ScoreRequest"):
        parse(pb.ScoreRequest, b"\xff\xff")


WAYS = {
    "Score": lambda client: client.score("yes"),
    "ScoreBatch": lambda client: client._call("ScoreBatch", pb.ScoreBatchRequest(prompts="y"), 60),
    "ScoreStream": lambda client: list(client.score_stream(["yes"])),
    "Info": lambda client: client.info(),
}


@pytest.mark.parametrize("direct", [True, False])
def test_a_token_is_asked_for_in_every_way(tiny_model, tmp_path, monkeypatch, direct):
    if not direct:
        monkeypatch.setattr("scoring_service.server.server.supports", lambda server: False)
    (tmp_path / "tokens").write_text("secret\n")
    config = ServerConfig(address="127.0.0.1:0", token_file=str(tmp_path / "tokens"))
    server = ScoringServer(tiny_model, config)
    server.start()
    for token in ("secret", "wrong", None):
        security = ClientSecurity(token=token)
        with ScoringClient(server.target, timeout_s=60, security=security) as client:
            for ask in WAYS.values():
                if token == "secret":
                    assert ask(client)
                    continue
                with pytest.raises(AccessDenied, match="bearer token"):
                    ask(client)
    server.stop()


def test_every_way_counts_its_calls_by_status(server, client):
    for ask in WAYS.values():
        ask(client)
    for _ in range(2):
        with pytest.raises(InvalidPrompt):
            client.score("")
    counts = dict.fromkeys((method, "OK") for method in WAYS) | {("Score", "INVALID_ARGUMENT"): 2}
    for (method, code), expected in counts.items():
        deadline_s = time.monotonic() + 60  # A call is counted just after it is answered.
        while counted(server, method, code) < (expected or 1):
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        assert counted(server, method, code) == (expected or 1)


def counted(server, method, code):
    labels = {"method": method, "code": code}
    list(server.metrics.registry.collect())
    return server.metrics.registry.get_sample_value("scoring_calls_total", labels) or 0


def test_the_same_prompt_has_the_same_score_in_every_way(server, client):
    score = client.score("long essay")
    assert isinstance(score, Score)
    assert client.score_batch(["long essay"]) == [score]
    assert list(client.score_stream(["long essay"])) == [(0, score)]
    with grpc.insecure_channel(server.target) as channel:
        raw = channel.unary_unary("/lengthwise.scoring.v1.ScoringService/Score")(
            pb.ScoreRequest(prompt="long essay").SerializeToString(), timeout=60
        )
    assert pb.ScoreResponse.FromString(raw).scored.score == pytest.approx(score.value)
