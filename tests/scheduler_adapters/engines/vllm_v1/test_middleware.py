"""Hints, classes, names of clients and answers of the middleware itself."""

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry

from lengthwise.errors import ConfigError
from lengthwise.tables.prompt_text import MAX_CHARACTERS
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER, EngineReports, report_server
from scheduler_adapters.engines.vllm_v1 import client_bodies, middleware
from scheduler_adapters.engines.vllm_v1.client_bodies import HINT_HEADERS
from scheduler_adapters.engines.vllm_v1.middleware import (
    ALLOWED_PROXIES,
    VARIABLE,
    MiddlewareConfig,
    VllmScores,
    hash_of,
)
from scheduler_adapters.engines.vllm_v1.request_scores import ScoreMetrics
from scheduler_adapters.planner.request_annotations import annotations_of_id, id_mark
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.fail_open import FailOpenScorer
from tests.scheduler_adapters.engines.vllm_v1.middleware_bench import (
    BATCH,
    CHAT,
    CLASSES,
    HINTED,
    HINTS,
    Bench,
    FakeScorer,
    Server,
    key,
)


def test_a_completion_carries_its_score_and_nothing_else_changes():
    bench = Bench(FakeScorer())
    sent = {"model": "m", "prompt": "hello", "temperature": 0.1, "logit_bias": {"5": 1}}
    assert bench.post(sent) == sent | {"vllm_xargs": {"lengthwise_score": 5.0}}
    assert int(bench.server.headers[b"content-length"]) == len(bench.server.content)
    assert bench.count("scored") == 1


def test_quantiles_go_with_the_score_unless_a_client_sent_any():
    bench = Bench(FakeScorer(quantiles={0.9: 640.0, 0.5: 210.0}))
    reached = bench.hints({"prompt": "hello"})
    assert reached == {"lengthwise_score": 5.0, "lengthwise_quantiles": [0.5, 210.0, 0.9, 640.0]}
    own = {"lengthwise_quantiles": [0.5, 1.0]}
    bench = Bench(FakeScorer(quantiles={0.9: 640.0, 0.5: 210.0}), client_hints=True)
    reached = bench.hints({"prompt": "hello", "vllm_xargs": own})
    assert reached == own | {"lengthwise_score": 5.0}


@pytest.mark.parametrize(
    ("scorer", "scored"),
    [(FakeScorer(), {"lengthwise_score": 5.0}), (FakeScorer("timeout"), {}), (None, {})],
)
def test_hints_of_a_client_are_dropped_and_counted(scorer, scored):
    bench = Bench(scorer, classes=CLASSES)
    sent = {"prompt": "hello", "vllm_xargs": HINTS | {"other": "x"}}
    reached = bench.hints(sent, headers={"Content-Encoding": "gzip"})
    assert reached == {"other": "x", "lengthwise_class": "batch"} | scored
    assert (bench.hints_counted("dropped"), bench.hints_counted("kept")) == (1, 0)
    assert (bench.count("scored"), bench.count("explicit")) == (len(scored), 0)


@pytest.mark.parametrize("key", [None, "Bearer sk-wrong", "Basic sk-right", "Bearer"])
def test_a_request_that_vllm_refuses_costs_no_score(key):
    scorer = FakeScorer()
    bench = Bench(scorer, key_hashes=[hash_of("sk-other"), hash_of("sk-right")])
    sent = {"prompt": "hello", "vllm_xargs": HINTS}
    assert bench.post(sent, headers={} if key is None else {"Authorization": key}) == sent
    assert scorer.asked == []
    assert bench.count("unscored", "no_key") == 1
    bench.post({"prompt": "hello"}, headers={"Authorization": "Bearer sk-right"})
    assert scorer.asked == ["hello"]


@pytest.mark.parametrize("name", ["served", "adapter", None, "none"])
@pytest.mark.parametrize("variable", ["0", "1"])
def test_a_request_for_an_unknown_model_costs_no_score(name, variable, monkeypatch):
    is_scored = name != "none" or variable == "1"
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", variable)
    models = SimpleNamespace(is_base_model="served".__eq__, lora_requests={"adapter": 1})
    bench = Bench(scorer := FakeScorer())
    app = SimpleNamespace(state=SimpleNamespace(openai_serving_models=models))
    bench.post({"prompt": "hello", "model": name}, app=app)
    assert scorer.asked == ["hello"] * is_scored
    assert bench.count("unscored", "unknown_model") == (not is_scored)


MESSAGES = [{"role": "user", "content": "hello"}]
TRANSFERS = {f"{kind}_transfer_params": {"remote_host": "10.0.0.9"} for kind in ("kv", "ec")}
CHOSEN = {"X-Vllm-Priority": "-7", "X-data-parallel-rank": "1"}


@pytest.mark.parametrize(
    ("path", "sent", "score"),
    [
        ("/v1/completions", {"prompt": "hello"} | HINTED, 5.0),
        ("/v1/chat/completions", {"messages": MESSAGES} | HINTED, 5.0),
        ("/v1/chat/completions/batch", {"messages": [MESSAGES, MESSAGES]} | HINTED, 5.0),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5} | HINTED, 5.0),
        ("/v1/responses", {"input": "hello"} | HINTED, 5.0),
        ("/invocations", {"messages": MESSAGES} | HINTED, 5.0),
        ("/invocations", {"prompt": "hello"} | HINTED, 5.0),
        ("/v1/completions", {"prompt": [1, 2]} | HINTED, None),
        ("/v1/completions", {"prompt": ["hello", "b"]} | HINTED, 5.0),
        ("/inference/v1/generate", {"sampling_params": {"extra_args": HINTS, "n": 1}}, None),
    ],
)
def test_no_endpoint_lets_hints_or_a_priority_through(path, sent, score):
    bench = Bench(FakeScorer(), classes=CLASSES)
    more = {"priority": -7, "stream": True, **TRANSFERS}
    reached = bench.post(sent | more, path, headers=CHOSEN)
    assert reached.pop("stream")
    assert not reached.keys() & {"priority", *TRANSFERS}
    assert not bench.server.headers.keys() & HINT_HEADERS
    hints = (reached.get("sampling_params", {}).get("extra_args") or reached["vllm_xargs"]).items()
    ours = {"lengthwise_class": "batch"} | ({} if score is None else {"lengthwise_score": score})
    assert {key: value for key, value in hints if key.startswith("lengthwise_")} == ours
    assert (bench.hints_counted("dropped"), bench.hints_counted("kept")) == (1, 0)
    assert bench.count("unscored", "no_text") == (score is None)
    assert bench.count("scored") == (score is not None)


@pytest.mark.parametrize("path", ["/pooling", "/v1/embeddings", "/cohere/v2/chat", "/of/a/plugin"])
def test_hints_and_priorities_are_dropped_at_any_endpoint(path):
    bench = Bench(FakeScorer())
    own = HINTS | TRANSFERS
    sent = {"input": "x", "sampling_params": {"extra_args": own | {"a": 1}}, "priority": -1}
    assert bench.post(sent | {"vllm_xargs": own, **TRANSFERS}, path) == {
        "input": "x",
        "sampling_params": {"extra_args": {"a": 1}},
        "vllm_xargs": {},
    }
    assert bench.hints_counted("dropped") == 1
    assert bench.count("unscored", "endpoint") == (path == "/cohere/v2/chat")


def test_a_header_and_the_usual_priority_leave_the_body():
    bench = Bench(None)
    sent = b'{"prompt":  "hello", "priority": 0}'
    bench.post(sent, headers={"X-Vllm-Priority": "-7"})
    assert bench.server.content == sent
    assert b"x-vllm-priority" not in bench.server.headers
    assert bench.hints_counted("dropped") == 1


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize(
    "spelled",
    [
        b'{"vllm_xargs": {"lengthwise_score": -1}, ',
        rb'{"vllm_xargs": {"\u006cengthwise_score": -1}, ',
        b'{"vllm_xargs": {"lengthwise_score": -1}, "vllm_xargs": {"lengthwise_score": -2}, ',
        b'\xef\xbb\xbf{"vllm_xargs": {"lengthwise_score": -1}, ',
        rb'{"priorit\u0079": -5, ',
    ],
)
def test_a_large_body_and_a_strange_spelling_hide_no_hint(spelled, size):
    bench, scored = Bench(FakeScorer()), ("scored", "cut" if size > MAX_CHARACTERS else "")
    for path in ("/v1/completions", "/pooling"):
        reached = bench.post(spelled + b'"prompt": "' + b"x" * size + b'"}', path)
        assert "lengthwise_score" not in (reached.get("vllm_xargs") or {}) or bench.count(*scored)
        assert "priority" not in reached
    assert bench.hints_counted("dropped") == 2
    assert bench.count(*scored) == 1


@pytest.mark.parametrize("has_classes", [False, True])
@pytest.mark.parametrize("scorer", [None, FakeScorer()])
def test_large_lists_of_token_ids_are_not_parsed(monkeypatch, scorer, has_classes):
    bench = Bench(scorer, classes=CLASSES if has_classes else None)
    sent = {"model": "m", "prompt": list(range(100_000)), "max_tokens": 1}
    with monkeypatch.context() as patch:
        patch.setattr(client_bodies, "parse", None)
        reached = bench.post(sent)
    assert reached == sent | ({"vllm_xargs": {"lengthwise_class": "batch"}} if has_classes else {})
    assert bench.count("unscored", "no_scorer" if scorer is None else "no_text") == 1
    assert bench.hints(sent | {"vllm_xargs": HINTS}).keys() <= {"lengthwise_class"}


def test_with_a_ranker_in_the_engine_no_plain_body_is_parsed(monkeypatch):
    bench = Bench(None, classes=CLASSES, scores_in_engine=True)
    monkeypatch.setattr(client_bodies, "parse", None)
    sent = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    reached = bench.post(sent, "/v1/chat/completions")
    assert reached == {**sent, "vllm_xargs": {"lengthwise_class": "batch"}}
    assert bench.count("engine", "") == 1
    bench.post({"x": 1}, "/generative_scoring")
    assert bench.count("engine", "") == 2


def test_a_second_header_hides_nothing():
    """vLLM reads the first of two."""
    bench = Bench(FakeScorer(), classes=CLASSES, key_hashes=[hash_of("sk-1")])
    second = [(b"content-type", b"text/plain"), (b"authorization", b"Bearer sk-gate")]
    reached = bench.post({"prompt": "hello"} | HINTED, more_headers=second, **key("sk-1"))
    assert reached["vllm_xargs"] == CHAT | {"lengthwise_score": 5.0}
    assert bench.hints_counted("dropped") == 1
    twice = [(b"x-user-class", b"chat"), (b"x-user-class", b"batch")]
    assert Bench(None, CLASSES).hints({"prompt": "x"}, more_headers=twice) == BATCH


FORM = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b'name="vllm_xargs"\r\n\r\n{"lengthwise_score": -1}', FORM, 400),
        (rb'name="vllm_xargs"\r\n\r\n{"lengthwis\u0065_score": -1}', FORM, 400),
        ('{"lengthwise_score": -1}'.encode("utf-16"), FORM + "; charset=utf-16", 400),
        (rb'name="vllm_xargs"\r\n\r\n{"kv_tr\u0061nsfer_params": "x"}', FORM, 400),
        (b'name="file"\r\n\r\n\\u00a0\\u0041 sound', FORM, 200),
    ],
)
def test_a_form_with_hints_is_refused_and_counted(content, content_type, status):
    bench = Bench(FakeScorer(), classes=CLASSES)
    asked = ("/v1/audio/transcriptions",)
    first, *_ = asyncio.run(bench.call(content, *asked, content_type=content_type))
    assert first["status"] == status
    assert bench.server.content == (content if status == 200 else b"")
    assert bench.hints_counted("refused") == (status == 400)
    assert bench.count("unscored", "endpoint") == 1
    asyncio.run(bench.call(content, *asked, content_type=content_type, **key("sk-gate")))
    assert bench.server.content == content


def test_an_unguarded_endpoint_drops_hints_without_a_key():
    scorer = FakeScorer()
    bench = Bench(scorer, key_hashes=[hash_of("sk-right")])
    assert bench.hints({"prompt": "x"} | HINTED, "/invocations") == {}
    assert bench.count("unscored", "no_key") == 1
    assert scorer.asked == []


def test_a_trusted_key_sends_hints_and_a_keys_class_stays():
    bench = Bench(FakeScorer(), classes=CLASSES)
    given = {key: value for key, value in HINTS.items() if key != "lengthwise_request_key"}
    headers = {"Authorization": "Bearer sk-gate"} | CHOSEN
    sent = {"prompt": "x", "vllm_xargs": HINTS, "priority": -7, **TRANSFERS}
    assert bench.post(sent, headers=headers) == sent | {"vllm_xargs": given}
    assert bench.server.headers.keys() >= HINT_HEADERS
    assert (bench.hints_counted("dropped"), bench.hints_counted("kept")) == (0, 1)

    bench = Bench(FakeScorer(), classes=CLASSES, client_hints=True)
    own = {"lengthwise_score": 7, "lengthwise_class": "vip", "lengthwise_tbt_s": 9.0, "other": "x"}
    sent = {"prompt": "x", "vllm_xargs": own}
    # Who may rank may not name the peers of an engine.
    assert bench.post(sent | TRANSFERS) == sent
    reached = bench.hints(sent, **key("sk-1"))
    assert reached == CHAT | {"lengthwise_score": 7, "other": "x"}
    assert bench.scores.scorer.asked == []  # type: ignore[union-attr]
    assert bench.count("explicit") == 2


@pytest.mark.parametrize(
    ("headers", "client", "hints"),
    [
        *(({"X-User-Class": "chat"}, (host, 1), CHAT) for host in ("10.9.9.9", "::1")),
        *(({"X-User-Class": "chat"}, (host, 1), BATCH) for host in ("192.168.0.1", "testclient")),
        ({"X-User-Class": "chat"}, None, BATCH),
        # A known key goes before the header, and where neither says a class it is the default.
        ({"Authorization": "Bearer sk-1"}, ("10.1.2.3", 5), CHAT),
        ({"Authorization": "Bearer sk-2", "X-User-Class": "chat"}, ("10.1.2.3", 5), CHAT),
        ({"Authorization": "Bearer sk-1", "X-User-Class": "batch"}, ("10.1.2.3", 5), CHAT),
        ({"X-User-Class": "no such class"}, ("10.1.2.3", 5), BATCH),
        ({}, ("10.1.2.3", 5), BATCH),
    ],
)
def test_the_header_counts_from_a_trusted_proxy_only(headers, client, hints):
    reached = Bench(None, classes=CLASSES).post({"prompt": "x"}, headers=headers, client=client)
    assert reached["vllm_xargs"] == hints


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"[1, 2]",
        b"\xff\xfe\x00",
        b'{"prompt": "x", "vllm_xargs": [1]}',
        b'{"prompt": "x", "vllm_xargs": "y"}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": 1' + b"0" * 5000 + b"}",
    ],
)
def test_what_is_no_request_passes_unchanged(content):
    bench = Bench(FakeScorer())
    asyncio.run(bench.call(content))
    assert bench.server.content == content
    assert bench.count("unscored", "unreadable") == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_body_whose_size_vllm_will_quote_keeps_it(path):
    bench = Bench(FakeScorer(), classes=CLASSES)
    sent = {"model": "m", "prompt": "hello"}
    assert bench.post(sent, path) == sent
    assert bench.count("unscored", "unreadable") == 1


def test_other_requests_are_not_touched():
    bench, content = Bench(FakeScorer()), b'{"prompt": "x"}'
    for other in ({"path": "/v1/embeddings"}, {"content_type": "text/plain"}):
        asyncio.run(bench.call(content, **other))
        assert bench.server.content == content
        assert bench.count("scored") == bench.count("unscored", "unreadable") == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text() | st.just("prompt"), json_values, max_size=5))
def test_every_body_reaches_the_server_with_all_that_was_in_it(body):
    reached = Bench(FakeScorer()).post(body)
    if body.get("vllm_xargs") is None and "vllm_xargs" in reached:
        del reached["vllm_xargs"]
    assert repr(reached) == repr({k: v for k, v in body.items() if k in reached})
    assert body.keys() - reached.keys() <= {"vllm_xargs"}


def test_late_scores_need_a_shared_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(middleware, "ScoreMetrics", lambda: ScoreMetrics(CollectorRegistry()))
    classes = tmp_path / "classes.json"
    classes.write_text('{"classes": {"chat": {"tbt_s": 0.1}}, "default": "chat"}')
    for folder, late_s, is_late in (("", 5.0, False), (tmp_path, None, False), (tmp_path, 5, True)):
        config = MiddlewareConfig(
            scorer="127.0.0.1:1", late_s=late_s, classes=str(classes),
            security=ClientSecurity(token="t"),
        )  # fmt: skip
        assert MiddlewareConfig.from_json(config.to_json()) == config
        monkeypatch.setenv(VARIABLE, config.to_json())
        monkeypatch.setenv(SHARED_FOLDER, str(folder))
        monkeypatch.setenv(ALLOWED_PROXIES, "")
        made = VllmScores(Server())
        assert made.classes.tbt_s == {"chat": 0.1}
        assert (made.scores.late is not None) == is_late
        assert isinstance(made.scores.scorer, FailOpenScorer)
        assert made.scores.scorer._timeout_s == (5.05 if is_late else 0.05)
        made.scores.scorer.close()
        if made.scores.late is not None:
            made.scores.late._socket.close()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"deadline": 1}', '{"deadline_s": -1}', '{"late_s": 0}'),
        *('{"client_hints": "false"}', '{"open_load": 1}', '{"key_hashes": "ab"}'),
        '{"key_hashes": null}',
    ],
)
def test_settings_that_serve_vllm_did_not_write_are_refused(text):
    with pytest.raises(ConfigError):
        MiddlewareConfig.from_json(text)


def test_only_a_router_with_a_key_is_answered_here(tmp_path):
    bench = Bench(FakeScorer(), reports=EngineReports(tmp_path))
    load = {"engine": 0, "waiting": 3}
    text = "# HELP a_total b\n# TYPE a_total counter\na_total 7.0\n"
    server = report_server(tmp_path, 0, lambda: {"load": load, "metrics": text})

    def get(path: str) -> list[Any]:
        return asyncio.run(bench.call(b"", path, method="GET"))

    bench.configure(key_hashes=[hash_of("sk-1")])
    start, _ = get("/lengthwise/load")
    assert start["status"] == 401
    bench.configure(open_load=True)
    start, body = get("/lengthwise/load")
    assert start["status"] == 200
    assert json.loads(body["body"]) == [load]
    assert [message.get("body") for message in get("/health")] == [None, b"a", b"b", b"c"]
    *_, last = get("/metrics")
    assert last["body"] == b"c" + text.encode()
    server.close()
    *_, last = get("/metrics")
    assert last["body"] == b"c"
    assert bench.registry.get_sample_value("lengthwise_dropped_reports") == 1


def test_no_client_can_set_the_name_that_the_engine_knows():
    bench, forged = Bench(None, CLASSES, shares=True, client_hints=True), "lengthwise_client"

    def name_of(body: Mapping[str, Any] | None = None, key: str = "", **sent: Any) -> str:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"prompt": "hello", **(body or {})}
        return bench.hints(body, headers=headers, **sent)[forged]

    address = name_of()
    assert len(address) == 16
    # A key that is not known is the client's own invention, so it counts by its address.
    forgeries = ({forged: "x"}, {forged: None}, {forged: name_of(key="sk-1")})
    assert {name_of({"vllm_xargs": each}, key="sk-new") for each in forgeries} == {address}
    gate = name_of(key="sk-gate")
    assert name_of({"vllm_xargs": {forged: "x"}}, key="sk-gate") == gate
    network = {name_of(client=(f"2001:db8::{end}", 1)) for end in ("1", "ffff:2")}
    others = name_of(key="sk-1"), gate, name_of(client=("2001:db8:0:1::1", 1))
    assert len({address, *network, *others}) == 5
    bench.configure(shares=False)
    body = {"prompt": "hello", "vllm_xargs": {forged: "x"}}
    assert forged not in bench.hints(body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x", "use_beam_search": True, "n": 4}),
        ("/v1/chat/completions", {"messages": MESSAGES, "use_beam_search": True}),
        *((path, {"input": "x"}) for path in ("/pooling", "/v1/embeddings", "/generative_scoring")),
    ],
)
def test_requests_that_vllm_makes_are_charged_to_their_client(path, body):
    bench, forged = Bench(None, CLASSES, shares=True), f"a{id_mark('0123', 'chat')}"
    named = bench.hints({"prompt": "x"}, **key("sk-1"))
    headers = {"X-Request-Id": "mine", "Authorization": "Bearer sk-1"}
    for own in ("mine", forged):
        bench.post(body | {"request_id": forged}, path, headers=headers | {"X-Request-Id": own})
        name = bench.server.headers[b"x-request-id"].decode()
        found = annotations_of_id(f"cmpl-{name}-0-123-beam-1-abc")
        assert found == {key: named[key] for key in ("lengthwise_client", "lengthwise_class")}
        assert name.index("-lengthwise") == (4 if own == "mine" else 32)
        assert b"request_id" not in bench.server.content
    bench.post({"prompt": "x"}, headers={"X-Request-Id": forged})
    assert b"x-request-id" not in bench.server.headers
