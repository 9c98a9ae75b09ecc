"""The exported figures follow the counts of a scheduler; the environment names the observers."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from prometheus_client import values

from scheduler_adapters.engines import engine_metrics, engine_sockets
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER, EngineReports
from scheduler_adapters.planner.request_annotations import AnnotationCounts
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.policies.fair_shares import ClassPriority
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.timeline.live_log import VARIABLE, TimelineLog
from scheduler_adapters.timeline.token_clock import TokenClock
from scheduler_adapters.views import RequestView
from tests.scheduler_adapters.engines.decisions import Clock
from tests.scoring_service.waiting import wait_until


def scheduler_with(tracker: object, **more: object) -> SimpleNamespace:
    """vLLM's scheduler, idle but for what is given."""
    parallel = SimpleNamespace(data_parallel_rank=3)
    idle = {
        "vllm_config": SimpleNamespace(parallel_config=parallel),
        **{"_lengthwise_planner": None, "running": [], "waiting": [], "_lengthwise_holders": []},
        **{"_lengthwise_scoring": None, "lengthwise_info": dict},
        **{"connector": None, "kv_cache_manager": SimpleNamespace(usage=0.25)},
    }
    return SimpleNamespace(**{"lengthwise_tracker": tracker, **idle, **more})


@pytest.fixture
def tokens():
    return TokenClock(thinks=True)


@pytest.fixture
def scheduler(tokens):
    """Two chats, of which one answers since 9 s, and a batch request in its prefill."""
    running = []
    for name, user_class, size in (("a", "chat", 10), ("b", "chat", 20), ("c", "batch", 30)):
        view = RequestView(name, 0, 1.0, 4, user_class=user_class, tbt_s=0.5)
        sizes = {"num_computed_tokens": size, "num_tokens": size + 1}
        tracked = SimpleNamespace(view=view)
        running.append(SimpleNamespace(request_id=name, lengthwise=tracked, **sizes))
        tokens.queued(view, 2.0)
        tokens.admitted(view, 5.0)
    views = [request.lengthwise.view for request in running[:2]]
    for now_s in (8.0, 9.0):
        for view in views:
            tokens.emitted(view, 1, now_s)
        tokens.thinking_ended(views[1], now_s)
        tokens.stepped(now_s)
    tracker = SimpleNamespace(
        annotation_counts=AnnotationCounts(scored=5, unscored=2, late=1),
        num_expired=3,
        clock=Clock(10.0),
        policy=FCFS(),
    )
    waiting = [SimpleNamespace(request_id="d", num_tokens=40, num_preemptions=0)]
    planner = SimpleNamespace(num_deferred=7)
    return scheduler_with(tracker, running=running, waiting=waiting, _lengthwise_planner=planner)


def test_counters_advance_to_what_was_counted_and_no_further(scheduler, tokens):
    metrics = engine_metrics.EngineMetrics(scheduler, tokens)
    registry = metrics.registry
    metrics.export()
    metrics.export()
    scheduler.lengthwise_tracker.annotation_counts.scored += 1
    metrics.export()
    value = registry.get_sample_value
    assert value("lengthwise_engine_requests_total", {"hint": "scored"}) == 6
    assert value("lengthwise_engine_requests_total", {"hint": "unscored"}) == 2
    assert value("lengthwise_engine_requests_total", {"hint": "late"}) == 1
    assert value("lengthwise_expired_ranks_total") == 3
    assert value("lengthwise_deferrals_total") == 7
    for number, score in enumerate((5.0, 2.0)):
        metrics.order.queued(RequestView("", number, 1.0, 4, score=score), 1.0)
    metrics.order.admitted(RequestView("", 0, 1.0, 4, score=5.0), 2.0)
    for _ in range(2):
        metrics.export()
        assert value("lengthwise_admissions_past_lower_score_total") == 1


def test_the_metrics_of_several_engines_are_summed(scheduler, tokens):
    engines = [engine_metrics.EngineMetrics(scheduler, tokens, number) for number in range(2)]
    for engine in engines:
        engine.export()
    shown = engine_metrics.exposition([engine.report() for engine in engines]).decode()
    lines = [line for line in shown.splitlines() if not line.startswith("#")]
    assert 'lengthwise_engine_requests_total{hint="scored"} 10.0' in lines
    assert 'lengthwise_kv_usage_fraction{engine="1"} 0.25' in lines
    assert shown.count("# TYPE lengthwise_deferrals_total counter") == 1
    assert "_created" not in shown


def test_kv_memory_is_shown_by_phase_and_class_and_falls_to_zero(scheduler, tokens):
    metrics = engine_metrics.EngineMetrics(scheduler, tokens)
    registry = metrics.registry

    def shown(name: str, phase: str, user_class: str) -> float | None:
        labels = {"phase": phase, "user_class": user_class}
        return registry.get_sample_value(f"lengthwise_resident_{name}", labels)

    metrics.export()
    assert shown("tokens", "reasoning", "chat") == 10
    assert shown("tokens", "answering", "chat") == 20
    assert shown("tokens", "prefill", "batch") == 30
    assert shown("requests", "answering", "chat") == 1
    scheduler.running.clear()
    metrics.export()
    assert shown("tokens", "answering", "chat") == 0


def test_gaps_first_answers_and_qoe_are_exported_once(scheduler, tokens):
    metrics = engine_metrics.EngineMetrics(scheduler, tokens)
    registry = metrics.registry
    finished = scheduler.running[1].lengthwise.view
    finished.preemptions = 2
    tokens.finished(finished, 9.0)
    tokens.stepped(9.0)
    metrics.export()
    metrics.export()
    value, chat = registry.get_sample_value, {"user_class": "chat"}
    for phase in ("reasoning", "answering"):
        labels = chat | {"phase": phase}
        assert value("lengthwise_tbt_seconds_count", labels) == 1
        assert value("lengthwise_tbt_seconds_sum", labels) == 1.0
        assert value("lengthwise_tbt_seconds_bucket", labels | {"le": "0.5"}) == 0
        assert value("lengthwise_tbt_seconds_bucket", labels | {"le": "1.0"}) == 1
    assert value("lengthwise_first_answer_seconds_sum", chat) == 8.0
    assert value("lengthwise_ttfat_seconds_sum", chat) == 1.0
    assert value("lengthwise_qoe_count", chat) == value("lengthwise_qoe_sum", chat) == 1
    for name, seconds in {"ttft": 7.0, "e2e": 8.0, "queueing": 3.0, "tpot": 1.0}.items():
        assert value(f"lengthwise_{name}_seconds_count", chat) == 1
        assert value(f"lengthwise_{name}_seconds_sum", chat) == seconds
    assert value("lengthwise_preemptions_total", chat) == 2
    assert value("lengthwise_kv_usage_fraction", {"engine": "0"}) == 0.25


def test_a_router_reads_who_is_late_and_what_memory_is_taken(scheduler, tokens):
    late = engine_metrics.load_report(scheduler, tokens, engine=1)
    scheduler.lengthwise_tracker.clock.now_s = 9.25  # within the half second that a token is read
    in_time = engine_metrics.load_report(scheduler, tokens, engine=0)
    assert (in_time["on_time"], late["on_time"]) == (True, False)
    assert (in_time["pacers_ahead"], late["pacers_empty"]) == (1, 1)
    for report in (in_time, late):
        phases = [report[name] for name in ("waiting", "prefill", "reasoning", "answering")]
        assert phases == [1, 1, 1, 1]
        assert (report["kv_tokens"], report["kv_usage_fraction"]) == (60, 0.25)


def test_the_load_is_told_in_the_terms_of_pascals_placement(scheduler, tokens):
    def counts(**settings: int) -> list[int]:
        scheduler.lengthwise_tracker.policy = ClassPriority(Pascal(**settings))
        report = engine_metrics.load_report(scheduler, tokens, engine=0)
        names = ("undemoted_reasoning", "first_quantum_answering", "kv_tokens", "host_kv_tokens")
        return [report[name] for name in names]

    # a thinks with 11 tokens, b answers since one token, c is prefilled with 31, d waits with 40.
    assert counts() == [3, 1, 60, 0]
    assert counts(demote_above_tokens=40) == [3, 1, 60, 0]
    assert counts(demote_above_tokens=39) == [2, 1, 60, 0]
    assert counts(demote_above_tokens=10) == [0, 1, 60, 0]
    assert counts(quantum_tokens=2) == [3, 1, 60, 0]
    assert counts(quantum_tokens=1) == [3, 0, 60, 0]
    # An evicted request that answers is none of those that reason, wherever its KV is.
    evicted = scheduler.running.pop(1)
    evicted.num_preemptions = 1
    scheduler._lengthwise_holders.append(evicted)
    assert counts() == [3, 1, 40, 0]
    scheduler.connector = object()
    assert counts() == [3, 1, 40, 21]


@pytest.fixture
def idle_scheduler():
    return scheduler_with(RequestTracker(FCFS(), clock=lambda: 0.0))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv(SHARED_FOLDER, raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)


def test_an_environment_that_asks_for_nothing_gets_no_observer(idle_scheduler):
    assert engine_metrics.observers_from_environment(idle_scheduler, thinks=True) == []


def test_a_timeline_is_written_where_the_environment_says(idle_scheduler, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "t.jsonl"))
    (log,) = engine_metrics.observers_from_environment(idle_scheduler, thinks=False)
    assert isinstance(log, TimelineLog)
    assert log._instance == 3
    log.close()
    assert (tmp_path / "t.jsonl").exists()


def test_no_metric_of_an_engine_is_a_page_of_a_file(idle_scheduler, tmp_path, monkeypatch):
    """With a full disk the first write to such a page would end the process."""
    (tmp_path / "files").mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "files"))
    monkeypatch.setattr(values, "ValueClass", values.MultiProcessValue())
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path))
    *_, export = engine_metrics.observers_from_environment(idle_scheduler, thinks=True)
    export.export()
    export.close()
    assert not list((tmp_path / "files").iterdir())


def test_a_busy_engine_exports_after_a_step_an_idle_one_at_once(
    idle_scheduler, tmp_path, monkeypatch
):
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path))
    *_, export = engine_metrics.observers_from_environment(idle_scheduler, thinks=True)
    request = SimpleNamespace(request_id="a", num_computed_tokens=7, num_tokens=8)
    clock = idle_scheduler.lengthwise_tracker.clock = Clock(10.0)

    def read() -> int:
        (report,) = asyncio.run(EngineReports(tmp_path).read())
        assert report["load"]["engine"] == 3
        return int(report["load"]["kv_tokens"])

    def read_in_step() -> int:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            wait_until(lambda: export._is_read)
            export.stepped(clock())
            return reading.result()

    monkeypatch.setattr(engine_metrics, "STEP_WITHIN_S", 60.0)
    monkeypatch.setattr(engine_sockets, "_READ_S", 60.0)
    assert read() == 0
    idle_scheduler.running = [request]
    export.stepped(clock())  # unread: no export
    assert export._load["kv_tokens"] == 0
    assert read_in_step() == 7
    request.num_computed_tokens = 9
    clock.now_s += engine_metrics.EVERY_S / 2
    assert read() == 7  # a reader that reads again and again costs no step more
    clock.now_s += engine_metrics.EVERY_S / 2
    assert read_in_step() == 9
    clock.now_s += engine_metrics.EVERY_S
    request.num_computed_tokens = 11
    monkeypatch.setattr(engine_metrics, "STEP_WITHIN_S", 0.0)
    assert read() == 9  # no step ended meanwhile
    export.stepped(clock())
    assert read() == 11
    idle_scheduler.running = []
    assert read() == 0
    export.close()


def test_latencies_that_nobody_reads_are_bounded(idle_scheduler, tokens, monkeypatch):
    monkeypatch.setattr(engine_metrics, "_MOST_UNREAD", 2)
    metrics = engine_metrics.EngineMetrics(idle_scheduler, tokens)
    for number in range(9):
        tokens.latencies.append(("e2e_seconds", "chat", float(number)))
        metrics.stepped(10.0 + number)
        assert len(tokens.latencies) <= 2
    metrics.export()
    assert 'lengthwise_e2e_seconds_count{user_class="chat"} 9.0' in metrics.report()["metrics"]
