"""The service over gRPC, in this process, with the tiny ranker."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import ScoringError, ServiceUnavailable
from scoring_service.client import Score
from scoring_service.server.rpc import SERVICE
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig


def test_a_call_in_flight_finishes_during_the_drain(server, client, monkeypatch):
    entered, proceed = threading.Event(), threading.Event()
    scorer, real = server.service.model.scorer, server.service.model.scorer.score
    monkeypatch.setattr(
        scorer, "score", lambda prompts: (entered.set(), proceed.wait(60), real(prompts))[2]
    )
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(client.score, "yes")
        assert entered.wait(60)
        drain = pool.submit(server.stop)
        proceed.set()
        drain.result(60)
        assert isinstance(call.result(60), Score)
    with pytest.raises(ServiceUnavailable):
        client.score("yes", timeout_s=60)


@pytest.mark.parametrize("broken", ["rpc._score_response", "call_lifecycle.Call"])
def test_a_defect_is_an_internal_error_and_the_log_has_it_all(client, monkeypatch, caplog, broken):
    def fail(*arguments):
        raise ValueError("surprise")

    monkeypatch.setattr(f"scoring_service.server.{broken}", fail)
    with pytest.raises(ScoringError, match=r"INTERNAL: .*its log says how") as caught:
        client.score("yes")
    assert "surprise" in caplog.text
    assert "surprise" not in str(caught.value)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_get_a_status_and_leave_the_server_well(raw_bytes_call, raw):
    code = raw_bytes_call.future(raw, timeout=60).code()
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)


@pytest.fixture(scope="module")
def raw_bytes_call(tiny_model):
    server = ScoringServer(tiny_model, ServerConfig(address="127.0.0.1:0"))
    server.start()
    with grpc.insecure_channel(server.target) as channel:
        yield channel.unary_unary(f"/{SERVICE}/ScoreBatch")
    server.stop()
