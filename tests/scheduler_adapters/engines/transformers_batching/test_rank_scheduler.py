"""Our policies inside transformers' continuous batching, on the CPU, with a tiny random model."""

from collections.abc import Mapping
from dataclasses import fields
from math import inf
from typing import Any

import pytest
from transformers import ContinuousBatchingConfig

from lengthwise.errors import ConfigError, UnsupportedByEngine
from scheduler_adapters.engines.transformers_batching import planner_view as transformers_border
from scheduler_adapters.engines.transformers_batching.rank_scheduler import require_ours, use_policy
from scheduler_adapters.planner.request_annotations import LIMITS, SCORE, AnnotationCounts
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.prefill_first import PrefillFirst, RequestLevel
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy, Traits
from scheduler_adapters.timeline.live_log import TimelineLog
from scheduler_adapters.timeline.timeline import read_timeline
from scheduler_adapters.views import Capability, LoadView, Phase, Rank, RequestView, StepRule
from tests.scheduler_adapters.late_burst import ByRank, late_burst

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LENGTHS = [40, 5, 30, 10, 50, 3]
_NAMES = {field.name for field in fields(ContinuousBatchingConfig)}
PAGE_SETTING = "page_size" if "page_size" in _NAMES else "block_size"
"""Name of the block size, which 5.17 has changed."""


def make_manager(model: Any, scheduler_type: str, *, generation: Any = None, **limits: Any) -> Any:
    from transformers import GenerationConfig

    settings = {
        PAGE_SETTING: 16,
        "num_blocks": 64,
        "max_batch_tokens": 64,
        "max_requests_per_batch": 1,
        "allow_block_sharing": False,
        "use_async_batching": False,
        **limits,
    }
    return model.init_continuous_batching(
        generation_config=generation or GenerationConfig(do_sample=False, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(
            scheduler_type=scheduler_type, **settings
        ),
    )


def results_of(manager: Any, count: int) -> dict[str, list[int]]:
    """The tokens of so many requests, in the order in which they end."""
    found: dict[str, list[int]] = {}
    while len(found) < count:
        result = manager.get_result(timeout=300)
        assert result is not None
        assert result.error is None
        found[result.request_id] = list(result.generated_tokens)
    return found


def serve(
    model: Any, scheduler_type: str, *, ours: bool = True, **limits: Any
) -> tuple[list[str], dict[str, list[int]], Any]:
    """Names in order of completion, what each was answered, and the scheduler."""
    manager = make_manager(model, scheduler_type, **limits)
    for number, size in enumerate(LENGTHS):
        manager.add_request([7 + number, 11, 13], request_id=str(size), max_new_tokens=size)
    manager.start()
    if ours:
        scheduler = require_ours(manager)
    answers = results_of(manager, len(LENGTHS))
    if not ours:
        scheduler = None
        with pytest.raises(UnsupportedByEngine, match="FIFOScheduler"):
            require_ours(manager)
    manager.stop(block=True)
    return list(answers), answers, scheduler


def scored(policy: Policy, **settings: Any) -> str:
    """The scheduler type under which the requests of `serve` carry their lengths."""
    hints: dict[str, Mapping[str, Any]] = {
        str(n): {SCORE: float(n), LIMITS: (0, inf)} for n in LENGTHS
    }
    return use_policy(policy, hints, **settings)


def test_the_policys_order_changes_no_answer(model):
    stock_order, stock, _ = serve(model, "fifo", ours=False)
    fcfs_order, under_fcfs, _ = serve(model, scored(FCFS()))
    pars_order, under_pars, _ = serve(model, scored(pars()))
    assert stock_order == fcfs_order == [str(n) for n in LENGTHS]
    assert pars_order == [str(n) for n in sorted(LENGTHS)]
    assert stock == under_fcfs == under_pars


@pytest.mark.parametrize("policy", [pars(), SLAI(max_tokens=16, max_decodes=4)])
def test_evicted_requests_keep_score_answer_and_times(model, policy, tmp_path):
    """Six requests of up to 53 tokens, at once, where there is room for 64 tokens."""
    _, stock, _ = serve(model, "fifo", ours=False)
    log = TimelineLog(str(tmp_path / "timeline.jsonl"), start_s=0.0)
    limits = {"num_blocks": 4, "max_requests_per_batch": 6, "safety_margin": 0.0}
    _, answers, scheduler = serve(model, scored(policy, observers=[log]), **limits)
    log.close()
    timeline = read_timeline(tmp_path / "timeline.jsonl")
    assert answers == stock
    assert timeline.preemptions.sum() > 0
    assert scheduler.tracker.annotation_counts == AnnotationCounts(scored=len(LENGTHS))
    assert sorted(timeline.requests.output_tokens) == sorted(LENGTHS)
    assert (timeline.requests.score == timeline.requests.output_tokens).all()
    assert (timeline.requests.arrival_s <= timeline.scheduled_s).all()
    assert (timeline.scheduled_s < timeline.first_token_s).all()
    assert (timeline.first_token_s <= timeline.finished_s).all()


def step(manager: Any) -> list[str]:
    """One turn of the engine's loop; returns the requests that ran."""
    processor = manager.batch_processor
    assert processor.prepare_next_batch()
    ran = [future.state.request_id for future in processor.inputs_and_outputs.requests_in_batch]
    processor._generation_step(manager.model)
    processor.update_batch()
    return ran


class NewFirst(FCFS):
    """Waiting requests before running ones, and never both in a step."""

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank(lane=int(request.phase > Phase.PREFILL))

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(mixed=False)


def test_work_goes_on_where_the_engine_runs_none_of_a_plan(model):
    manager = make_manager(model, use_policy(NewFirst(), {}), max_requests_per_batch=2)
    manager.batch_processor = manager._create_batch_processor()
    manager.add_request([7, 11, 13], request_id="first", max_new_tokens=9)
    assert step(manager) == ["first"]
    manager.add_request([7, 11, 13], request_id="second", max_new_tokens=9)
    manager.batch_processor.scheduler.block_new_requests = True
    assert step(manager) == ["first"]
    manager.batch_processor.scheduler.block_new_requests = False
    assert step(manager) == ["second"]


class Chunks(FCFS):
    """Demands each prefill in chunks, however many there are."""

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(chunk=8)


class LaterChunks(FCFS):
    """Demands so from the second step on."""

    def step_rule(self, load: LoadView) -> StepRule:
        return StepRule(max_tokens=32, chunk=8 if load.step else None)


class Offloads(FCFS):
    traits = Traits(requires=frozenset({Capability.OFFLOAD}))


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Offloads(), "requires OFFLOAD"),
        (Chunks(), "one budget for all"),
        (PrefillFirst(), "wants prompts whole"),
        (RequestLevel(), "wants prompts whole"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_at_start(policy, reason):
    with pytest.raises(UnsupportedByEngine, match=reason):
        use_policy(policy, {})


def test_phases_need_a_token_that_ends_thinking():
    with pytest.raises(ConfigError, match="think_end"):
        use_policy(Pascal(), {})


def test_a_later_rule_the_engine_cannot_keep_is_refused(model):
    manager = make_manager(model, use_policy(LaterChunks(), {}), max_requests_per_batch=4)
    manager.batch_processor = manager._create_batch_processor()
    manager.add_request([7] * 20, request_id="first", max_new_tokens=9)
    step(manager)
    for name in ("second", "third"):
        manager.add_request([7] * 20, request_id=name, max_new_tokens=9)
    with pytest.raises(UnsupportedByEngine, match="max_prefills=1"):
        step(manager)


def test_planning_ahead_of_the_tokens_is_refused(model):
    manager = make_manager(model, use_policy(SLAI(), {}))
    manager.batch_processor = manager._create_batch_processor()
    manager.batch_processor.use_async_batching = True
    with pytest.raises(UnsupportedByEngine, match="use_async_batching=False"):
        require_ours(manager)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"finish_request": lambda self, state: None}, "finish_request takes"),
        ({"schedule_batch": lambda self, budget: None}, "schedule_batch takes"),
    ],
)
def test_an_unknown_layout_is_refused_before_anything_is_served(change, found, monkeypatch):
    for name, method in change.items():
        monkeypatch.setattr(transformers_border.FIFOScheduler, name, method)
    with pytest.raises(UnsupportedByEngine, match=f"does not know: .*{found}.*use 5"):
        use_policy(FCFS(), {})


def test_in_a_burst_scored_requests_start_by_rank(model):
    """Scores of waiting requests arrive between two steps, from another thread."""
    made: list[Any] = []
    by_rank = ByRank(lambda: [state.lengthwise.rank for each in made for state in each._queue])
    name = use_policy(pars(), {}, observers=[by_rank])
    manager = make_manager(model, name, max_requests_per_batch=2)
    sizes = late_burst(40).output_tokens.tolist()
    for row, size in enumerate(sizes):
        manager.add_request([7, 11, 13 + row], request_id=str(row), max_new_tokens=size)
    manager.start()
    scheduler = require_ours(manager)
    made.append(scheduler)
    done: list[str] = []
    for row, size in enumerate(sizes):
        if row % 4 == 0:
            result = manager.get_result(timeout=300)
            assert result is not None
            done.append(result.request_id)
        scheduler.score_arrived(str(row), {"lengthwise_score": size})
    scheduler.score_arrived("nobody", {"lengthwise_score": 1})
    scheduler.score_arrived("0", {"lengthwise_score": float("nan")})
    results_of(manager, len(sizes) - len(done))
    manager.stop(block=True)
    counts = scheduler.tracker.annotation_counts
    assert (counts.scored, counts.unscored) == (by_rank.num_scored, by_rank.num_unscored)
    assert counts.late == counts.scored == 40 - counts.unscored > 10
