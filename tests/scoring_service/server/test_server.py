"""The service over gRPC, in this process, with the tiny ranker."""

from __future__ import annotations

import socket
import threading
import time

import grpc
import pytest
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring_service.client import Score, ScoringClient
from scoring_service.client.async_client import AsyncScoringClient
from scoring_service.client.fail_open import FailOpenScorer
from scoring_service.errors import (
    ConfigError,
    InvalidPrompt,
    ScoringError,
    ScoringTimeout,
    ServiceOverloaded,
    ServiceUnavailable,
)
from scoring_service.server.rpc import SERVICE
from scoring_service.server.server import ScoringServer
from scoring_service.service.batching import Call
from scoring_service.service.config import ServerConfig
from scoring_service.status import CODE_OF, DETAILS_KEY, from_rpc_error, from_status, to_status


def test_scores_order_prompts_by_length(client):
    assert client.score("long essay").value > client.score("poem").value
    assert client.score("poem").value > client.score("yes no").value


def test_a_batch_gives_the_scores_of_its_prompts_alone_in_order(client):
    prompts = ["yes", "a long essay", "no no no", "poem " * 30]
    batch = client.score_batch(prompts)
    assert batch == [client.score(prompt) for prompt in prompts]


def test_a_bad_prompt_fails_alone(client):
    good, empty, large, lone_surrogate = client.score_batch(["yes", "", "x" * 1001, "\ud800"])
    assert isinstance(good, Score)
    for error in (empty, large, lone_surrogate):
        assert isinstance(error, InvalidPrompt)


@pytest.mark.parametrize("prompt", [3, None, b"yes", "\ud800"])
def test_what_is_not_unicode_text_is_an_invalid_prompt(client, prompt):
    with pytest.raises(InvalidPrompt, match="a prompt is"):
        client.score(prompt)
    good, bad = client.score_batch(["yes", prompt])
    assert isinstance(good, Score)
    assert isinstance(bad, InvalidPrompt)


def test_one_string_is_no_batch_of_its_characters(client):
    with pytest.raises(InvalidPrompt, match="one string"):
        client.score_batch("Write a poem.")


@pytest.mark.parametrize("target", ["", None, 50051])
def test_a_client_without_a_target_is_refused(target):
    for client in (ScoringClient, AsyncScoringClient, FailOpenScorer):
        with pytest.raises(ConfigError, match="target is"):
            client(target)


@pytest.mark.parametrize("seconds", [-1, 0, float("nan"), float("inf")])
def test_a_client_whose_calls_could_never_be_in_time_is_refused(seconds):
    for client in (ScoringClient, AsyncScoringClient):
        with pytest.raises(ConfigError, match="timeout_s is"):
            client("127.0.0.1:1", timeout_s=seconds)
    with pytest.raises(ConfigError, match="budget_s is"):
        FailOpenScorer("127.0.0.1:1", budget_s=seconds)


def test_the_client_splits_to_the_limits_of_the_service(client):
    prompts = ["poem " * 150] * 3 + ["yes"] * 20  # over 8 prompts and over 4,000 bytes
    scores = client.score_batch(prompts)
    assert len(scores) == 23
    assert all(isinstance(score, Score) for score in scores)


def test_an_oversized_batch_is_refused_by_name(server):
    with pytest.raises(InvalidPrompt, match="9 prompts"):
        server.service.score_batch(["x"] * 9, "", Call(time.monotonic() + 1))


def test_a_message_beyond_the_transport_limit_is_an_invalid_prompt(client):
    with pytest.raises(InvalidPrompt, match="larger than max"):
        client.score("x" * 5000)


def test_a_long_prompt_is_cut_and_says_so(client):
    score = client.score("poem " * 100)
    assert score.truncated
    assert score.prompt_tokens == 32
    assert not client.score("poem").truncated


def test_a_target_model_turns_the_score_into_tokens(server):
    with ScoringClient(server.target, timeout_s=60, target_model="tiny-llm") as client:
        short, long = client.score("no"), client.score("essay essay essay")
    assert short.expected_tokens < long.expected_tokens <= 1000
    assert set(long.quantiles) == {0.5, 0.9}
    assert long.quantiles[0.5] <= long.quantiles[0.9]


def test_an_unknown_target_model_is_refused_with_the_known_ones(server):
    with (
        ScoringClient(server.target, timeout_s=60, target_model="gpt-9") as client,
        pytest.raises(InvalidPrompt, match="tiny-llm"),
    ):
        client.score("x")


def test_info_tells_the_model_and_the_limits(client, tiny_bundle):
    info = client.info()
    assert info.name == "tiny"
    assert info.revision == tiny_bundle.manifest.revision == client.score("x").revision
    assert (info.max_batch_prompts, info.max_prompt_tokens) == (8, 32)
    assert info.target_models == ("tiny-llm",)
    assert info.precision == "fp32"


def test_health_says_serving_until_the_drain_begins(server):
    with grpc.insecure_channel(server.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert stub.Check(request, timeout=60).status == health_pb2.HealthCheckResponse.SERVING
        server._health.enter_graceful_shutdown()
        assert stub.Check(request, timeout=60).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_reflection_lists_the_service(server):
    with grpc.insecure_channel(server.target) as channel:
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {SERVICE, "grpc.health.v1.Health"} <= set(services)


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


def test_a_passed_deadline_is_a_scoring_timeout(server, client, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(server.service.model.scorer, "score", lambda prompts: gate.wait(60))
    with pytest.raises(ScoringTimeout):
        client.score("yes", timeout_s=0.1)
    gate.set()


def test_no_service_is_unavailable_with_the_command_that_starts_one():
    with (
        ScoringClient("127.0.0.1:1", timeout_s=60) as client,
        pytest.raises(ServiceUnavailable, match="scoring_service serve"),
    ):
        client.score("yes")
    with ScoringClient("127.0.0.1:1", timeout_s=60) as client:
        assert {type(error) for error in client.score_batch(["a", "b"])} == {ServiceUnavailable}


def test_a_port_in_use_is_refused(tiny_model, server):
    with pytest.raises(ConfigError, match="in use"):
        ScoringServer(tiny_model, ServerConfig(address=server.target))


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


@pytest.mark.parametrize("kind", list(CODE_OF))
def test_every_error_the_server_returns_comes_back_as_itself(kind):
    assert type(from_status(to_status(kind("why")))) is kind


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_grpc_code_is_some_scoring_error(code):
    assert isinstance(from_status(status_pb2.Status(code=code.value[0])), ScoringError)


def test_retry_info_travels_in_the_status():
    error = from_status(to_status(ServiceOverloaded("full", retry_after_s=0.25)))
    assert error.retry_after_s == pytest.approx(0.25)
    assert from_status(to_status(ServiceOverloaded("full"))).retry_after_s is None


def test_a_foreign_trailer_is_ignored():
    class Failed(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        def details(self):
            return "busy"

        def trailing_metadata(self):
            return ((DETAILS_KEY, b"\xff\xff not protobuf"),)

    error = from_rpc_error(Failed(), "host:1")
    assert isinstance(error, ServiceOverloaded)
    assert error.retry_after_s is None


def test_the_port_of_a_stopped_server_is_free_again(tiny_model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        server = ScoringServer(tiny_model, ServerConfig(address=f"127.0.0.1:{port}"))
        server.start()
        server.stop()


def test_an_answer_that_cannot_be_written_ends_the_call(server, client, monkeypatch, caplog):
    def fail(answer):
        raise ValueError("as told")

    monkeypatch.setattr("scoring_service.server.rpc._score_response", fail)
    with pytest.raises(ScoringError, match="its log says how"):
        client.score("poem")
    assert "as told" in caplog.text
