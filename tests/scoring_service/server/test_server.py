"""The service over gRPC, in this process, with the tiny ranker."""

from __future__ import annotations

import threading

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import (
    ScoringError,
    ServiceUnavailable,
)
from scoring_service.client import Score, ScoringClient
from scoring_service.server.rpc import SERVICE
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig


def test_a_long_prompt_is_cut_and_says_so(client):
    score = client.score("poem " * 100)
    assert score.truncated
    assert score.prompt_tokens == 32
    assert not client.score("poem").truncated


def test_a_call_in_flight_finishes_during_the_drain(server, monkeypatch):
    entered, proceed = threading.Event(), threading.Event()
    real = server.service.model.scorer.score

    def slow(prompts):
        entered.set()
        proceed.wait(60)
        return real(prompts)

    monkeypatch.setattr(server.service.model.scorer, "score", slow)
    results = []
    with ScoringClient(server.target, timeout_s=60) as client:
        caller = threading.Thread(target=lambda: results.append(client.score("yes")))
        caller.start()
        assert entered.wait(60)
        drain = threading.Thread(target=server.stop)
        drain.start()
        proceed.set()
        drain.join(60)
        caller.join(60)
        assert isinstance(results[0], Score)
        with pytest.raises(ServiceUnavailable):
            client.score("yes", timeout_s=60)


def test_a_failing_model_is_an_internal_error_that_hides_nothing_from_the_log(
    server, client, monkeypatch, caplog
):
    def broken(prompts):
        raise ValueError("surprise")

    monkeypatch.setattr(server.service.model.scorer, "score", broken)
    with pytest.raises(ScoringError, match="INTERNAL"):
        client.score("yes")
    assert "surprise" in caplog.text


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_get_a_status_and_leave_the_server_well(raw_bytes_call, raw):
    code = raw_bytes_call(raw)
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)


@pytest.fixture(scope="module")
def raw_bytes_call(tiny_model):
    server = ScoringServer(tiny_model, ServerConfig(address="127.0.0.1:0"))
    server.start()
    with grpc.insecure_channel(server.target) as channel:
        method = channel.unary_unary(f"/{SERVICE}/ScoreBatch")

        def call(raw: bytes) -> grpc.StatusCode:
            return method.future(raw, timeout=60).code()

        yield call
    server.stop()


def test_an_answer_that_cannot_be_written_ends_the_call(server, client, monkeypatch, caplog):
    def fail(answer):
        raise ValueError("as told")

    monkeypatch.setattr("scoring_service.server.rpc._score_response", fail)
    with pytest.raises(ScoringError, match="its log says how"):
        client.score("poem")
    assert "as told" in caplog.text
