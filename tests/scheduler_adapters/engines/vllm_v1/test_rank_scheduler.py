"""PARS inside the real vLLM: one engine in this process, one seat, so that order is everything."""

import gc
import weakref
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partialmethod
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.validation.engine_trial import StepRecorder
from lengthwise.errors import UnsupportedByEngine
from scheduler_adapters.engines.engine_clock import make_clock
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.engines.vllm_v1 import in_process
from scheduler_adapters.planner.recent_median import RecentMedian
from scheduler_adapters.planner.request_annotations import LIMITS, AnnotationCounts
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.engines.decisions import Clock
from tests.scheduler_adapters.late_burst import ByRank, late_burst

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def live_engine(tmp_path_factory):
    config = in_process.OfflineConfig(scheduler="pars", max_num_seqs=1)
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHARED_FOLDER, str(folder))
        with in_process.open_engine(config, max_model_len=1024) as engine:
            yield engine
    assert not list(folder.glob("*.sock"))


@pytest.fixture
def engine(live_engine):
    """The engine, empty before and after, with fresh counters and a clock that stands still."""
    tracker = in_process.scheduler_of(live_engine).lengthwise_tracker
    tracker.clock, tracker.annotation_counts, tracker._median = (
        Clock(),
        AnnotationCounts(),
        RecentMedian(),
    )
    yield live_engine
    finish(live_engine)
    assert not in_process.scheduler_of(live_engine).requests
    assert len(in_process.scheduler_of(live_engine).waiting) == 0


def add(
    engine: Any,
    name: str,
    tokens: int,
    hints: Mapping[str, Any] | None = None,
    *,
    priority: int = 0,
) -> None:
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        # Lengths are forced here, and hidden from the policy.
        extra_args={LIMITS: (0, inf)} | dict(hints or {}),
    )
    prompt = {"prompt_token_ids": [3 + tokens % 500, 5, 8]}
    engine.add_request(name, prompt, params, priority=priority)


def scored(engine: Any, name: str, tokens: int, score: Any, *, priority: int = 0) -> None:
    add(engine, name, tokens, {"lengthwise_score": score}, priority=priority)


def finish(engine: Any) -> list[str]:
    """Step until nothing is left; the requests in order of completion."""
    done = []
    while engine.has_unfinished_requests():
        done += [output.request_id for output in engine.step() if output.finished]
    return done


def test_a_scheduler_without_its_constructor_is_the_engines(live_engine):
    made = object.__new__(type(in_process.scheduler_of(live_engine)))
    assert not made.lengthwise_tracker.events.observers
    assert made._lengthwise_planner is None
    assert made._lengthwise_step_start_s == 0.0


class Arrivals(StepRecorder):
    """Notes number and arrival of each request that is queued."""

    def __init__(self) -> None:
        super().__init__()
        self.queued_s: list[tuple[int, float]] = []

    def queued(self, request: RequestView, now_s: float) -> None:
        self.queued_s.append((request.number, request.arrival_s))


def test_each_recording_of_the_same_prompts_begins_anew(engine):
    requests = make_requests(
        prompt_tokens=[100, 70], output_tokens=[5, 9], arrival_s=[0.0, 1e4], scores=[2.0, 1.0]
    )
    for _ in range(2):
        recorder = Arrivals()
        driver, clock = in_process.VllmDriver(engine), make_clock("cpu")
        timeline = driver.serve(requests, clock=clock, seed=0, observers=[recorder])
        # Were blocks of the first time found, the second would have fewer tokens to compute.
        assert sum(step.prefill_tokens for step in recorder.steps) == 170
        assert sum(step.seconds for step in recorder.steps) < 100
        # The policy's time is the clock's, which skips what is idle.
        assert [number for number, _ in recorder.queued_s] == [0, 1]
        assert [s for _, s in recorder.queued_s] == pytest.approx([0.0, 1e4], abs=0.1)
        assert timeline.preemptions.tolist() == [0, 0]
        waited_s = timeline.scheduled_s - requests.arrival_s
        assert (waited_s >= 0).all()
        assert (timeline.first_token_s >= timeline.scheduled_s).all()


class Hearing(EngineObserver):
    """Notes each event with the request's name, and the tokens it was given."""

    def __init__(self) -> None:
        self.heard: dict[str, list[str]] = defaultdict(list)
        self.tokens = Counter[str]()
        self.steps = 0

    def note(self, event: str, request: RequestView, now_s: float) -> None:
        self.heard[request.request_id.partition("-")[0]].append(event)

    queued = partialmethod(note, "queued")  # type: ignore[assignment]
    admitted = partialmethod(note, "admitted")  # type: ignore[assignment]
    finished = partialmethod(note, "finished")  # type: ignore[assignment]
    withdrawn = partialmethod(note, "withdrawn")  # type: ignore[assignment]

    def emitted(self, request: RequestView, num_tokens: int, now_s: float) -> None:
        self.tokens[request.request_id.partition("-")[0]] += num_tokens

    def stepped(self, now_s: float) -> None:
        self.steps += 1


def test_observers_hear_of_a_request_from_start_to_end(engine):
    scheduler, hearing = in_process.scheduler_of(engine), Hearing()
    tracker = scheduler.lengthwise_tracker
    scheduler.lengthwise_start(tracker.policy, observers=[hearing])
    scheduler.lengthwise_tracker.clock = tracker.clock
    try:
        scored(engine, "served", 3, 1)
        scored(engine, "left", 50, 2)
        scored(engine, "gone", 50, 3)
        engine.step()
        engine.abort_request(["gone"])
        while hearing.heard["left"] != ["queued", "admitted"]:
            engine.step()
        engine.abort_request(["left"])
        finish(engine)
        engine.step()
    finally:
        scheduler.lengthwise_start(tracker.policy)
        scheduler.lengthwise_tracker.clock = tracker.clock
    assert hearing.heard == {
        "served": ["queued", "admitted", "finished"],
        "left": ["queued", "admitted", "withdrawn"],
        "gone": ["queued", "withdrawn"],
    }
    assert hearing.tokens["served"] == 3
    assert hearing.tokens["gone"] == 0
    assert hearing.steps >= 4


def test_aborted_requests_leave_no_state(engine):
    scheduler = in_process.scheduler_of(engine)
    for number in range(200):
        scored(engine, str(number), 50, float(number))
    engine.step()
    kept = [weakref.ref(request) for request in scheduler.requests.values()]
    engine.abort_request([str(number) for number in range(0, 200, 2)])
    assert len(scheduler.waiting) + len(scheduler.running) == 100
    engine.abort_request([str(number) for number in range(200)])
    finish(engine)
    engine.step()  # the step after the last drops the engine's own references
    gc.collect()
    assert not scheduler.running
    assert not [ref for ref in kept if ref() is not None]
    assert len(scheduler.waiting.queue._timers._heap) <= 65


def test_the_mixin_shadows_nothing_of_the_engine_by_accident():
    from vllm.v1.core.sched.scheduler import Scheduler

    from scheduler_adapters.engines.vllm_v1.rank_scheduler import RankMixin

    ours = {name for name in vars(RankMixin) if not name.startswith("__")}
    assert ours & set(dir(Scheduler)) == {
        "schedule", "update_from_output", "_free_request", "shutdown"
    }  # fmt: skip


def test_an_unknown_policy_of_the_engine_is_refused(live_engine):
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import RankMixin

    class Base:
        """The live scheduler, but for its policy."""

        scheduler_config = SimpleNamespace(policy="longest")

        def __getattr__(self, name: str) -> Any:
            return getattr(in_process.scheduler_of(live_engine), name)

    class Ours(RankMixin, Base):
        pass

    with pytest.raises(UnsupportedByEngine, match="--scheduling-policy fcfs, or priority"):
        Ours()


def test_an_unknown_scheduler_layout_is_refused():
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import RankMixin

    with pytest.raises(UnsupportedByEngine, match="has no vllm_config"):
        RankMixin()


def test_every_policy_has_a_factory_and_no_other_name_does():
    from scheduler_adapters.engines import vllm_v1
    from scheduler_adapters.policy import POLICIES

    assert all(callable(getattr(vllm_v1, name.replace("-", "_"))) for name in POLICIES)
    with pytest.raises(AttributeError, match="no policy 'parsley'"):
        _ = vllm_v1.parsley


def test_the_shortest_limit_is_first_and_the_longest_is_late(engine):
    from vllm import SamplingParams

    for number in range(9):
        scored(engine, f"a{number}", 3, number)
    for name, score, more in (("short", 99.0, {"max_tokens": 4}), ("long", -9.0, {})):
        params = SamplingParams(
            **{"max_tokens": 400, "min_tokens": 300 * (not more)} | more,
            detokenize=False,
            extra_args={"lengthwise_score": score},
        )
        engine.add_request(name, {"prompt_token_ids": [3, 5, 8]}, params)
    order = finish(engine)
    assert order.index("short") <= 1
    assert order.index("a5") < order.index("long")


def test_those_that_start_after_their_score_came_start_by_rank(engine):
    scheduler = in_process.scheduler_of(engine)
    by_rank = ByRank(lambda: (each.lengthwise.rank for each in scheduler.waiting.queue))
    requests = late_burst(60, over_s=0.3)
    timeline = in_process.VllmDriver(engine).serve(
        requests, clock=make_clock("cpu"), seed=0, observers=[by_rank]
    )
    assert [len(timeline.token_s(row)) for row in range(60)] == requests.output_tokens.tolist()
    counts = scheduler.lengthwise_tracker.annotation_counts
    assert (counts.scored, counts.unscored) == (by_rank.num_scored, by_rank.num_unscored)
    assert counts.late == counts.scored == 60 - counts.unscored > 15
