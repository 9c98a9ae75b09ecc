"""Decisions of a policy are equal in vLLM and in the reference simulator, step by step.

The planner alone is compared under every policy in `planner/test_decisions.py`. Here are the ranks
and rules of chance, and the policies that read what others do not.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.speed.engine import settings_of
from scheduler_adapters.engines.random_model import llama_config, make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import OfflineConfig, open_engine, scheduler_of
from scheduler_adapters.planner.request_annotations import annotations_of
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.workload.requests import Requests, make_requests
from tests.scheduler_adapters.engines import decisions
from tests.scheduler_adapters.engines.vllm_v1.driving import VARIED
from tests.scheduler_adapters.simulator.prefix_cache import Shared

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

SEATS, BUDGET, BLOCKS = 8, 512, 20


def workload(seed: int, *, longest: int = 110) -> Requests:
    """Requests for which blocks run out; those of at most 40 tokens always fit."""
    requests = decisions.workload(seed, count=14, longest=longest)
    return replace(requests, output_tokens=requests.output_tokens // 2 + 1)


@pytest.fixture(scope="module")
def caching_engine(tmp_path_factory):
    """An engine that caches prefixes, and whose steps take little else than its scheduler."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
    told = llama_config("tiny").to_dict() | shape | {"num_attention_heads": 2, "head_dim": 64}
    model = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(**told)).save_pretrained(model)
    config = OfflineConfig(
        model=model, scheduler="fcfs", max_num_seqs=SEATS, max_num_batched_tokens=BUDGET
    )
    arguments = {"max_model_len": 512, "enable_prefix_caching": True, "dtype": "float32"}
    with open_engine(config, num_gpu_blocks_override=BLOCKS + 1, **arguments) as engine:
        yield engine


@pytest.fixture(params=[False, True], ids=["all computed", "prefixes cached"])
def engine(caching_engine, request):
    """The engine under a scheduler that caches prefixes, and under one that does not."""
    core, cached = caching_engine.engine_core.engine_core, scheduler_of(caching_engine)
    if not request.param:
        cached.cache_config.enable_prefix_caching = False
        core.scheduler = type(cached)(**settings_of(cached))
    yield caching_engine
    cached.cache_config.enable_prefix_caching = True
    core.scheduler = cached


def beginnings_in(engine: Any, requests: Requests) -> Shared | None:
    """Beginnings of prompts in an engine that caches prefixes: two blocks, for most of them."""
    caches = scheduler_of(engine).cache_config.enable_prefix_caching
    return decisions.beginnings(0, requests, tokens=64) if caches else None


def prompts_of(
    requests: Requests, shared: Shared | None, thought: tuple[int, ...]
) -> Iterator[list[int]]:
    for row in range(len(requests)):
        beginning, tokens = shared[row] if shared else (0, 0)
        first = random.Random(f"beginning {beginning}").choices(range(3, 500), k=tokens)
        yield first + decisions.prompt_of(requests, row, thought)[tokens:]


def serve(
    engine: Any,
    policy: Policy,
    requests: Requests,
    *,
    priorities: Sequence[int] | None = None,
    thought: tuple[int, ...] = (),
) -> tuple[decisions.Steps, list[list[int]]]:
    """Return steps and answers; with priorities, under the scheduling policy of that name."""
    from vllm.v1.core.sched.request_queue import SchedulingPolicy

    scheduler, clock = scheduler_of(engine), decisions.Clock()
    shared = None if thought else beginnings_in(engine, requests)
    prompts = prompts_of(requests, shared, thought)
    outputs: list[list[int]] = [[] for _ in range(len(requests))]
    steps: decisions.Steps = []
    schedule = type(scheduler).schedule

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(scheduler, *args, **kwargs)
        if output.num_scheduled_tokens:
            steps.append({row_of(k): n for k, n in output.num_scheduled_tokens.items()})
            clock.step(output.total_num_scheduled_tokens)
        return output

    with pytest.MonkeyPatch.context() as patch:
        if priorities is not None:
            patch.setattr(scheduler.scheduler_config, "policy", "priority")
            patch.setattr(scheduler, "policy", SchedulingPolicy.PRIORITY)
        engine.reset_prefix_cache()
        scheduler.lengthwise_start(policy)
        scheduler.lengthwise_tracker.clock = clock
        # An arrival is stamped in wall-clock time; here both clocks are the virtual one.
        patch.setattr("scheduler_adapters.engines.vllm_v1.rank_queue.time.time", clock)
        patch.setattr(scheduler, "schedule", watched)
        added = 0
        while added < len(requests) or engine.has_unfinished_requests():
            if not engine.has_unfinished_requests():
                clock.now_s = max(clock.now_s, float(requests.arrival_s[added]))
            while added < len(requests) and requests.arrival_s[added] <= clock.now_s:
                engine.add_request(
                    str(added),
                    {"prompt_token_ids": next(prompts)},
                    sampling_of(requests, added),
                    arrival_time=float(requests.arrival_s[added]),
                    priority=0 if priorities is None else priorities[added],
                )
                added += 1
            for output in engine.step():
                if output.finished:
                    outputs[int(output.request_id)] = list(output.outputs[0].token_ids)
    return steps, outputs


def sampling_of(requests: Requests, row: int) -> Any:
    from vllm import SamplingParams

    size, hints = int(requests.output_tokens[row]), annotations_of(requests, row)
    return SamplingParams(temperature=0.0, max_tokens=size, extra_args=hints, **VARIED)


def row_of(request_id: str) -> int:
    """The engine appends random characters to the name we gave."""
    return int(request_id.partition("-")[0])


ANSWERS: dict[bytes, list[list[int]]] = {}
"""In FCFS order, by what decides them: of the engine, whether it caches prefixes."""


def answers_in_fcfs_order(engine: Any, requests: Requests) -> list[list[int]]:
    """The tokens each request gets under FCFS: an order moves answers and changes none."""
    sizes = np.array([requests.prompt_tokens, requests.output_tokens, requests.arrival_s])
    key = sizes.tobytes() + repr(beginnings_in(engine, requests)).encode()
    if key not in ANSWERS:
        ANSWERS[key] = serve(engine, FCFS(), requests)[1]
    return ANSWERS[key]


def assert_same(
    engine: Any,
    make: Callable[[], Policy],
    requests: Requests,
    *,
    by_priority: bool = False,
    thought: tuple[int, ...] = (),
) -> decisions.Steps:
    """Return the steps of the engine, if these are the simulator's."""
    expected = decisions.steps_of_simulator(
        decisions.ByPriority(make()) if by_priority else make(),
        requests,
        seats=SEATS,
        budget=BUDGET,
        blocks=BLOCKS,
        block_tokens=32,
        shared=beginnings_in(engine, requests),
    )
    priorities = decisions.priorities_of(requests) if by_priority else None
    actual, outputs = serve(engine, make(), requests, priorities=priorities, thought=thought)
    decisions.assert_same_steps(actual, expected)
    assert thought or outputs == answers_in_fcfs_order(engine, requests)
    return actual


@pytest.mark.parametrize("kind", [{}, {"chunks": "every"}, {"displaces": True}])
def test_any_ranks_and_rules_give_the_steps_of_the_simulator(engine, kind):
    requests = workload(seed := int(scheduler_of(engine).cache_config.enable_prefix_caching))
    if kind.get("displaces"):
        requests = replace(requests, prompt_tokens=requests.prompt_tokens // 3 + 1)
    assert_same(engine, lambda: decisions.Dice(seed, **kind), requests)


POLICIES = decisions.small_policies(BUDGET) | decisions.rivals()


@pytest.mark.parametrize(
    "name",
    [
        *("prefill first", "request level"),  # whole prompts
        *("slai by class", "rad", "round robin", "a guard around", "shares around groups"),
        *("srpt", "token counter around"),
    ],
)
def test_a_policy_gives_the_steps_of_the_simulator(caching_engine, name):
    requests = workload(0)
    if name == "srpt":
        requests = decisions.predicted(0, requests)
    assert_same(caching_engine, POLICIES[name], requests)


PRIORITISED: dict[str, Callable[[], Policy]] = {
    "slai": lambda: SLAI(max_tokens=BUDGET, max_resident=6, max_decodes=3),
    "round robin": lambda: RoundRobin(quantum_tokens=20),
    "pars": lambda: pars(starve_after_s=0.5),
    "overtaking": lambda: pars(guard="overtaking", times=0.5, at_least=2),
}


@pytest.mark.parametrize("name", PRIORITISED)
def test_under_vllms_priority_policy_it_goes_before_the_rank(caching_engine, name):
    assert_same(caching_engine, PRIORITISED[name], workload(0, longest=40), by_priority=True)


@pytest.mark.parametrize("make", [pars, RoundRobin])
def test_the_lowest_priority_makes_room_and_comes_back(caching_engine, make):
    requests = make_requests(prompt_tokens=[200] * 3, output_tokens=[60] * 3)
    for priorities in ([5, 0, 0], [0, -1, 5]):
        steps, outputs = serve(caching_engine, make(), requests, priorities=priorities)
        computed = [sum(step.get(row, 0) for step in steps) for row in range(3)]
        assert computed.index(max(computed)) == priorities.index(5)
        assert [len(tokens) for tokens in outputs] == [60] * 3


def test_where_kv_is_plenty_the_engines_rules_are_the_simulators(caching_engine):
    assert_same(caching_engine, lambda: pars(starve_after_s=0.5), workload(0, longest=40))


@contextmanager
def thinking_ends_with(engine: Any, token: int) -> Iterator[None]:
    settings = scheduler_of(engine).vllm_config.additional_config["lengthwise"]
    settings["think_end"] = [token]
    yield
    del settings["think_end"]


def test_pascal_sees_the_end_of_thinking_of_the_simulator(engine):
    requests = workload(1)
    think_end, thinking = decisions.thoughts_in(answers_in_fcfs_order(engine, requests))
    with thinking_ends_with(engine, think_end):
        assert_same(
            engine,
            lambda: Pascal(quantum_tokens=12, demote_above_tokens=90),
            replace(requests, reasoning_tokens=np.array(thinking)),
        )


NEVER_SAID = 2
"""A token that the requests of this file are not allowed to answer with."""


def test_where_only_seats_are_short_pascal_evicts_nobody(caching_engine):
    requests = decisions.more_than_seats(SEATS, ends_thinking=False)
    with thinking_ends_with(caching_engine, NEVER_SAID):
        steps = assert_same(
            caching_engine, lambda: Pascal(quantum_tokens=4), requests, thought=(NEVER_SAID,)
        )
    assert max(len(step) for step in steps) == SEATS
    assert decisions.computed_once(steps, requests)


def test_pascal_puts_answers_behind_thoughts(caching_engine):
    requests = decisions.more_than_seats(4, ends_thinking=False)
    with thinking_ends_with(caching_engine, NEVER_SAID):
        assert_same(
            caching_engine, lambda: Pascal(max_decodes=2), requests, thought=(NEVER_SAID, 3, 3)
        )


def test_the_end_of_thinking_comes_from_vllms_reasoning_parser(engine, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from vllm import EngineArgs

    from scheduler_adapters.engines.vllm_v1.rank_scheduler import think_end_of

    make_tiny_model(tmp_path)
    words = {"[UNK]": 0, "</s>": 1, "<think>": 5, "</think>": 7}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    fast.save_pretrained(tmp_path)
    told = EngineArgs(model=str(tmp_path), reasoning_parser="deepseek_r1").create_engine_config()
    assert think_end_of(SimpleNamespace(vllm_config=told)) == (7,)
    untold = EngineArgs(model=str(tmp_path)).create_engine_config()
    assert think_end_of(SimpleNamespace(vllm_config=untold)) == ()
