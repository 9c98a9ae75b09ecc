"""PARS inside the real vLLM: one engine in this process, one seat, so that order is everything."""

import gc
import json
import time
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
from scheduler_adapters.engines.vllm_v1 import in_process
from scheduler_adapters.planner.ranking import Ranker
from scheduler_adapters.planner.recent_median import RecentMedian
from scheduler_adapters.planner.request_annotations import LIMITS, AnnotationCounts
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.engines.decisions import Clock

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def live_engine():
    config = in_process.OfflineConfig(scheduler="pars", max_num_seqs=1)
    with in_process.open_engine(config, max_model_len=1024) as engine:
        yield engine


@pytest.fixture
def engine(live_engine):
    """The engine, empty before and after, with fresh counters and a clock that stands still."""
    ranker = in_process.scheduler_of(live_engine).lengthwise
    ranker.clock, ranker.annotation_counts, ranker._median = (
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


def test_a_scheduler_made_without_its_constructor_does_what_the_engines_own_does(live_engine):
    made = object.__new__(type(in_process.scheduler_of(live_engine)))
    assert not made.lengthwise.observers
    assert made._lengthwise_planner is None
    assert made._lengthwise_step_start_s == 0.0


@pytest.mark.parametrize(
    ("pending", "can_be_freed", "hands_over", "evicts"),
    [
        (False, True, False, True),
        (False, True, True, True),
        (True, True, False, False),
        (False, False, False, False),
    ],
)
def test_a_resident_whose_blocks_come_free_only_later_is_not_evicted(
    pending, can_be_freed, hands_over, evicts
):
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import VllmView

    told: list[Any] = []
    view = object.__new__(VllmView)
    view.begin_step = lambda: None
    view._scheduler = SimpleNamespace(
        running=["resident"],
        connector=SimpleNamespace(has_pending_block_frees=lambda: pending),
        requires_kv_delivery=hands_over,
        _request_blocks_can_be_freed=lambda request: can_be_freed,
        _preempt_request=lambda request, now_s, **kwargs: told.append((request, kwargs)),
    )
    assert view.evict("resident") == evicts
    assert view._scheduler.running == ([] if evicts else ["resident"])
    how = {"drop_stale_output": True} if hands_over else {}
    assert told == ([("resident", how)] if evicts else [])


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


def test_observers_hear_of_every_request_from_its_arrival_to_its_end(engine):
    scheduler, hearing = in_process.scheduler_of(engine), Hearing()
    ranker = scheduler.lengthwise
    scheduler.lengthwise_start(ranker.policy, observers=[hearing])
    scheduler.lengthwise.clock = ranker.clock
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
        scheduler.lengthwise_start(ranker.policy)
        scheduler.lengthwise.clock = ranker.clock
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


def test_only_requests_with_kv_blocks_stand_in_the_second_queue():
    """In 0.26 to 0.30 the engine puts there whatever could not start in an earlier step."""
    from vllm import SamplingParams
    from vllm.v1.request import RequestStatus

    from scheduler_adapters.engines.vllm_v1.rank_scheduler import RankQueue

    ranker = Ranker(pars())
    ranked = RankQueue(ranker)
    holders = RankQueue(ranker, ranked)

    def waiting(score: float, computed: int) -> Any:
        params = SamplingParams(max_tokens=999, extra_args={"lengthwise_score": score})
        return SimpleNamespace(
            request_id=str(score), arrival_time=time.time(), num_prompt_tokens=9,
            sampling_params=params, num_computed_tokens=computed, status=RequestStatus.WAITING,
            priority=0, prompt_token_ids=[1],
        )  # fmt: skip

    holders.add_request(waiting(3.0, 7))
    holders.prepend_requests(iter([waiting(5.0, 0), waiting(2.0, 1), waiting(4.0, 0)]))
    assert [one.request_id for one in holders] == ["2.0", "3.0"]
    assert [one.request_id for one in ranked] == ["4.0", "5.0"]


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


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("sent", "grammar", "limits"),
    [
        ({}, None, (0, 50)),
        ({"max_tokens": None}, None, (0, inf)),
        ({"min_tokens": 20}, None, (20, 50)),
        ({"ignore_eos": True}, None, (50, 50)),
        ({"ignore_eos": True, "max_tokens": None}, None, (inf, inf)),
        ({"logit_bias": {5: -100}}, None, (50, 50)),
        ({"allowed_token_ids": [5]}, None, (50, 50)),
        ({}, {"regex": "(a ){4000}"}, (50, 50)),
        ({}, {"grammar": "root ::= 'a'"}, (50, 50)),
        ({}, {"structural_tag": "{}"}, (50, 50)),
        ({}, {"choice": ["yes", "no"]}, (0, 50)),
        ({}, {"choice": ["yes " * 4000]}, (50, 50)),
        ({}, {"json_object": True}, (0, 50)),
        ({}, {"json": SCHEMA}, (0, 50)),
        ({}, {"json": json.dumps(SCHEMA)}, (0, 50)),
        ({}, {"json": SCHEMA | {"minLength": 9}}, (50, 50)),
        ({}, {"json": json.dumps(SCHEMA | {"pattern": "a{9}"})}, (50, 50)),
    ],
)
def test_what_may_force_a_length_counts_as_long_as_it_may_be(sent, grammar, limits):
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from scheduler_adapters.engines.vllm_v1.rank_scheduler import limits_of

    made = None if grammar is None else StructuredOutputsParams(**grammar)
    params = SamplingParams(**{"max_tokens": 50} | sent, structured_outputs=made)
    assert limits_of(params) == limits
    assert limits_of(None) == (0, inf)


def test_a_request_limited_to_four_tokens_is_first_and_one_of_two_hundred_at_least_is_last(engine):
    from vllm import SamplingParams

    for number in range(9):
        scored(engine, f"a{number}", 3, number)
    for name, score, more in (("short", 99.0, {"max_tokens": 4}), ("long", -9.0, {})):
        params = SamplingParams(
            **{"max_tokens": 900, "min_tokens": 600 * (not more)} | more,
            detokenize=False,
            extra_args={"lengthwise_score": score},
        )
        engine.add_request(name, {"prompt_token_ids": [3, 5, 8]}, params)
    order = finish(engine)
    assert order.index("short") <= 1
    assert order[-2:] == ["a8", "long"]
