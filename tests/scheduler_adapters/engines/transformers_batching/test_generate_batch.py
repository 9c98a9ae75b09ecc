"""Options of transformers' continuous batching work, or are refused, under every policy."""

from typing import Any

import pytest

from lengthwise.errors import UnsupportedByEngine
from scheduler_adapters.engines.transformers_batching.planner_view import TransformersView
from scheduler_adapters.engines.transformers_batching.rank_scheduler import use_policy
from scheduler_adapters.planner.request_annotations import SCORE, AnnotationCounts
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import POLICIES, Policy, load_policy
from scheduler_adapters.views import Capability
from tests.scheduler_adapters.engines.transformers_batching.test_rank_scheduler import (
    PAGE_SETTING,
    make_manager,
    step,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

THINK_END = (3,)
WHOLE_PROMPTS = {"vllm-prefill-first", "orca", "request-level"}
PATHS = {path: name for name, path in POLICIES.items()}
BUDGET = 64
LIMITS: dict[str, Any] = {"num_blocks": 10, "max_batch_tokens": BUDGET, PAGE_SETTING: 16}
LIMITS |= {"max_requests_per_batch": 4, "use_async_batching": False}
PROMPTS = [[7] * 40, [5] * 100, [9]]
"""The second is larger than a step, and none of the engine's pages is full of the third."""


@pytest.fixture
def _impatient(monkeypatch):
    """`generate_batch` gives up once no result has come for 20 s; by itself it never does."""
    from transformers.generation.continuous_batching import ContinuousBatchingManager

    get_result = ContinuousBatchingManager.get_result

    def get(self: Any, request_id: str | None = None, timeout: float | None = None) -> Any:
        result = get_result(self, request_id, 20.0)
        if result is None and self.is_running():
            self.stop(block=False, hard_stop=True)
            raise TimeoutError("requests are left, and no result comes")
        return result

    monkeypatch.setattr(ContinuousBatchingManager, "get_result", get)


def generate(
    model: Any, scheduler_type: str, *, num_sequences: int = 1, **settings: Any
) -> dict[str, list[int]]:
    """What `generate_batch` answers to `PROMPTS` where a few requests share a small KV memory."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # transformers draws several sequences only; of one token there is one draw.
    generation = GenerationConfig(
        do_sample=True, top_k=1, eos_token_id=-1, num_return_sequences=num_sequences
    )
    config = ContinuousBatchingConfig(scheduler_type=scheduler_type, **LIMITS, **settings)
    results = model.generate_batch(
        PROMPTS, generation_config=generation, continuous_batching_config=config, max_new_tokens=20
    )
    assert not [result.error for result in results.values() if result.error]
    return {name: list(result.generated_tokens) for name, result in results.items()}


@pytest.fixture(scope="module")
def stock(model):
    """The answers of the engine's own scheduler."""
    return list(generate(model, "fifo").values())


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("name", "shared"),
    [*((name, False) for name in PATHS.values()), ("pars", True), ("slai", True)],
)
def test_under_every_policy_it_answers_as_the_engine_does(model, stock, name, shared):
    """Three sequences of each prompt, where 10 blocks hold two requests at most."""
    policy = load_policy(name)
    if name in WHOLE_PROMPTS or Capability.PREFIX_HITS in policy.traits.requires:
        with pytest.raises(UnsupportedByEngine, match=r"prompts whole|PREFIX_HITS"):
            use_policy(policy, {})
        return
    scheduler_type = use_policy(policy, {}, think_end=THINK_END)
    answers = generate(model, scheduler_type, num_sequences=3, allow_block_sharing=shared)
    assert list(answers.values()) == [tokens for tokens in stock for _ in range(3)]


def add(
    manager: Any, name: str, prompt_tokens: int, output_tokens: int = 6, **options: Any
) -> None:
    prompt = [5 + len(name)] * prompt_tokens
    manager.add_request(prompt, request_id=name, max_new_tokens=output_tokens, **options)


def started(model: Any, policy: Policy, hints: Any = None, **limits: Any) -> Any:
    """A manager whose loop the test turns itself."""
    scheduler_type = use_policy(policy, {} if hints is None else hints)
    manager = make_manager(model, scheduler_type, **limits)
    manager.batch_processor = manager._create_batch_processor()
    return manager


def results_of(manager: Any) -> list[Any]:
    found = []
    while not manager.output_router.output_queue.empty():
        found.append(manager.output_router.output_queue.get())
    return found


def finish(manager: Any, most_steps: int = 300) -> list[Any]:
    """The results in their order, once nothing is left; fails where a turn runs nobody."""
    for _ in range(most_steps):
        if not manager.batch_processor.has_pending_requests() and manager.input_queue.empty():
            return results_of(manager)
        step(manager)
    raise AssertionError("requests are left")


def test_each_sequence_is_ranked_and_takes_a_seat(model):
    scores = {"long": 9.0, "short": 5.0}
    # With the limits of these requests their lengths would be known.
    hints = {name: {SCORE: score, "lengthwise_limits": (0, 99)} for name, score in scores.items()}
    manager = started(model, pars(), hints)
    manager.num_return_sequences = 2
    add(manager, "long", 20, 9)
    add(manager, "short", 20, 5)
    order = [result.request_id for result in finish(manager)]
    assert order == ["short", "short__child#0", "long", "long__child#0"]
    tracker = manager.batch_processor.scheduler.tracker
    assert tracker.annotation_counts == AnnotationCounts(scored=4)
    assert not hints


def state_of(manager: Any, name: str) -> Any:
    scheduler = manager.batch_processor.scheduler
    return scheduler.active_requests.get(name) or scheduler.waiting_requests.get(name)


def is_decoding(manager: Any) -> str | None:
    return "b" if state_of(manager, "b").generated_tokens else None


def is_prefilling(manager: Any) -> str | None:
    state = state_of(manager, "b")
    return "b" if state.position_offset and state.remaining_prefill_tokens else None


def waits(manager: Any) -> str | None:
    return "d" if "d" in manager.batch_processor.scheduler.waiting_requests else None


def has_lost_its_blocks(manager: Any) -> str | None:
    waiting = manager.batch_processor.scheduler.waiting_requests.values()
    return next((state.request_id for state in waiting if state._true_initial_tokens), None)


@pytest.mark.parametrize("policy", [pars(), Sarathi(max_tokens=24), SLAI(max_tokens=24)])
@pytest.mark.parametrize("who", [waits, is_prefilling, is_decoding, has_lost_its_blocks])
def test_a_request_is_cancelled_in_every_state(model, policy, who):
    manager = started(model, policy, num_blocks=8, max_batch_tokens=24, max_requests_per_batch=3)
    names = ["a", "b", "c", "d"]
    for name in names:
        add(manager, name, 30, 40)
    add(manager, "gone before it is seen", 30)
    manager.cancel_request("gone before it is seen")
    step(manager)
    for _ in range(100):
        if (cancelled := who(manager)) is not None:
            break
        step(manager)
    assert cancelled is not None
    manager.cancel_request(cancelled)
    answered = {result.request_id: len(result.generated_tokens) for result in finish(manager)}
    assert answered == dict.fromkeys(set(names) - {cancelled}, 40)
    scheduler = manager.batch_processor.scheduler
    assert not scheduler._queue
    assert not scheduler.active_requests
    assert scheduler.planner is None or not scheduler.planner.residents
    view = TransformersView(scheduler)
    assert view.free_blocks() == view.total_blocks


def test_others_go_on_after_all_residents_are_cancelled(model):
    manager = started(model, pars(), num_blocks=8, max_requests_per_batch=4)
    for name in ("a", "b", "c"):
        add(manager, name, 30, 40)
    scheduler = None
    while scheduler is None or not scheduler.block_new_requests:
        step(manager)
        scheduler = manager.batch_processor.scheduler
    left = set(scheduler.waiting_requests)
    assert left
    for name in scheduler.active_requests:
        manager.cancel_request(name)
    assert {result.request_id for result in finish(manager)} == left


def test_an_id_in_use_is_refused_alone(model):
    manager = started(model, pars())
    add(manager, "a", 9)
    add(manager, "a", 3)
    step(manager)
    (refused,) = results_of(manager)
    assert "'a' is in use; give the request another" in refused.error
    (answered,) = finish(manager)
    assert (answered.error, len(answered.prompt_ids)) == (None, 9)
    add(manager, "a", 3)
    assert len(finish(manager)[0].prompt_ids) == 3


@pytest.mark.parametrize("policy", [pars(), SLAI(max_tokens=24)])
def test_streams_and_log_probabilities_outlast_evictions(model, policy):
    from transformers import GenerationConfig

    def results(scheduler_type: str) -> list[Any]:
        manager = make_manager(
            model,
            scheduler_type,
            generation=GenerationConfig(do_sample=True, top_k=50, eos_token_id=-1),
            num_blocks=8,
            max_requests_per_batch=3,
            return_logprobs=True,
            per_request_processors=True,
        )
        manager.batch_processor = manager._create_batch_processor()
        for name in ("a", "b", "c"):
            add(manager, name, 30, 40, streaming=True, top_k=1)
        return finish(manager)

    names = ("a", "b", "c")
    stock, ours = results("fifo"), results(use_policy(policy, {}))
    for name in names:
        theirs, mine = ([r for r in of if r.request_id == name] for of in (stock, ours))
        assert [len(result.generated_tokens) for result in mine] == list(range(1, 41))
        assert mine[-1].generated_tokens == theirs[-1].generated_tokens
        assert mine[-1].logprobs == pytest.approx(theirs[-1].logprobs, abs=1e-4)


@pytest.mark.usefixtures("_impatient")
def test_a_manager_is_kept_for_the_next_batch(model):
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = ContinuousBatchingConfig(scheduler_type=use_policy(SLAI(max_tokens=24), {}), **LIMITS)
    answers = [
        model.generate_batch(
            PROMPTS,
            generation_config=GenerationConfig(eos_token_id=-1, max_new_tokens=9),
            continuous_batching_config=config,
            persistent_manager=True,
        )
        for _ in range(2)
    ]
    model.destroy_cached_continuous_batching_manager()
    first, second = ([one.generated_tokens for one in each.values()] for each in answers)
    assert first == second
    assert [len(tokens) for tokens in first] == [9] * 3


def test_an_engine_that_runs_ahead_of_a_plan_stops(model):
    """As asynchronous batching does, which `generate_batch` chooses by itself on a GPU."""
    manager = started(model, SLAI(), max_requests_per_batch=2)
    add(manager, "a", 9)
    assert manager.batch_processor.prepare_next_batch()
    with pytest.raises(UnsupportedByEngine, match="use_async_batching=False"):
        manager.batch_processor.prepare_next_batch()
