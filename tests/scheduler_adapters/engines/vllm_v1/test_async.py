"""vLLM's asynchronous scheduling under our policies: a step is scheduled before the last one ends.

The CPU build switches it off, so no whole engine runs here. The schedulers are vLLM's and ours; two
steps are in flight as in `EngineCore.step_with_batch_queue`, and what stands in for the model gives
each token by request and position, as a greedy model does.
"""

import random
import time
from collections import defaultdict, deque
from math import inf
from typing import Any

import pytest

from scheduler_adapters.engines.vllm_v1.in_process import OfflineConfig, open_engine, scheduler_of
from scheduler_adapters.planner.request_annotations import LIMITS, SCORE, TBT_S
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.rad import RAD
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.shortest_predicted import pars_paper as pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

IN_FLIGHT = 2
Steps = list[dict[str, int]]


@pytest.fixture(scope="module")
def made_with():
    """What a scheduler is made with, of an engine that was asked to schedule asynchronously."""
    config = OfflineConfig(
        scheduler="fcfs",
        settings={"think_end": [7]},
        max_num_seqs=8,
        max_num_batched_tokens=256,
        kv_cache_mib=1,
    )
    with open_engine(config, max_model_len=512, async_scheduling=True) as engine:
        scheduler = scheduler_of(engine)
        names = ("vllm_config", "kv_cache_config", "structured_output_manager", "block_size")
        yield {name: getattr(scheduler, name) for name in (*names, "hash_block_size")}


@pytest.fixture(params=[False, True], ids=["all computed", "prefixes cached"])
def settings(made_with, request):
    made_with["vllm_config"].cache_config.enable_prefix_caching = request.param
    return made_with


def requests(count: int = 24) -> list[Any]:
    """All prompts begin alike, as far as the shorter of two goes."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(32, sha256)
    dice = random.Random(0)
    made = []
    for number in range(count):
        size = dice.randint(1, 60)
        hints = {SCORE: float(size), LIMITS: (0, inf), TBT_S: dice.choice([0.001, 10.0])}
        params = SamplingParams(max_tokens=size, ignore_eos=True, extra_args=hints)
        prompt = [5] * dice.randint(4, 150)
        made.append(
            Request(
                str(number), prompt, params, None, arrival_time=time.time(), block_hasher=hasher
            )
        )
    return made


def next_token(request: Any) -> int:
    return 3 + (int(request.request_id) * 31 + request.num_computed_tokens) % 17


def serve(scheduler: Any) -> tuple[Steps, dict[str, list[int]]]:
    """Serve all with two steps in flight: the steps, and the tokens in the order of the ends."""
    from vllm.v1.outputs import ModelRunnerOutput

    for request in requests():
        scheduler.add_request(request)
    flying: deque[tuple[Any, Any]] = deque()
    steps: Steps = []
    tokens: dict[str, list[int]] = defaultdict(list)
    finished: dict[str, list[int]] = {}
    while scheduler.has_unfinished_requests() or flying:
        if scheduler.has_unfinished_requests() and len(flying) < IN_FLIGHT:
            scheduled = scheduler.schedule()
            assert scheduled.total_num_scheduled_tokens or flying, "an engine would spin here"
            names = list(scheduled.num_scheduled_tokens)
            steps.append(dict(scheduled.num_scheduled_tokens))
            here = [scheduler.requests[name] for name in names]
            sampled = [[] if one.is_prefill_chunk else [next_token(one)] for one in here]
            index = {name: at for at, name in enumerate(names)}
            flying.append((scheduled, ModelRunnerOutput(names, index, sampled)))
            if len(flying) < IN_FLIGHT:
                continue
        for outputs in scheduler.update_from_output(*flying.popleft()).values():
            for one in outputs.outputs:
                tokens[one.request_id] += one.new_token_ids
                if one.finish_reason is not None:
                    finished[one.request_id] = tokens[one.request_id]
    return steps, finished


def served_by(settings: dict[str, Any], policy: Policy) -> tuple[Any, Steps, dict[str, list[int]]]:
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import AsyncRankScheduler

    scheduler = AsyncRankScheduler(**settings)
    scheduler.lengthwise_start(policy)
    return scheduler, *serve(scheduler)


def expected() -> dict[str, list[int]]:
    """Each token by its position: position p is sampled once p tokens have been computed."""
    made = {}
    for request in requests():
        request.num_computed_tokens = request.num_prompt_tokens
        answer = made[request.request_id] = []
        for _ in range(request.max_tokens):
            answer.append(next_token(request))
            request.num_computed_tokens += 1
    return made


def test_the_cpu_build_gets_the_synchronous_class(settings):
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import AsyncRankScheduler, scheduler

    config = settings["vllm_config"]
    assert not config.scheduler_config.async_scheduling  # though it was asked for
    assert not isinstance(scheduler(**settings), AsyncRankScheduler)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(config.scheduler_config, "async_scheduling", True)
        assert isinstance(scheduler(**settings), AsyncRankScheduler)


def test_fcfs_takes_the_steps_of_vllms_own_scheduler(settings):
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    stock_steps, stock_tokens = serve(AsyncScheduler(**settings))
    _, steps, tokens = served_by(settings, FCFS())
    assert steps == stock_steps
    assert tokens == stock_tokens == expected()


def test_pars_starts_the_shortest_first(settings):
    _, steps, tokens = served_by(settings, pars())
    assert tokens == expected()
    sizes = {request.request_id: request.max_tokens for request in requests()}
    started = list(dict.fromkeys(name for step in steps for name in step))
    assert [sizes[name] for name in started] == sorted(sizes.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda: SLAI(max_tokens=64, max_decodes=3),
        lambda: RAD(tile=4, chunk=32),
        lambda: RoundRobin(quantum_tokens=10),
        lambda: Pascal(quantum_tokens=10, max_decodes=4),
    ],
    ids=["slai", "rad", "round-robin", "pascal"],
)
def test_planned_steps_lose_no_token_and_leave_no_state(settings, make):
    scheduler, _, tokens = served_by(settings, make())
    assert tokens == expected()
    assert not scheduler._lengthwise_planner.residents
    assert not scheduler.waiting
    assert not scheduler.running


@pytest.mark.parametrize(("max_tokens", "blocks"), [(2, 0), (3, 1)])
def test_a_last_token_in_flight_needs_no_block(settings, max_tokens, blocks, monkeypatch):
    from vllm import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from scheduler_adapters.engines.vllm_v1.rank_scheduler import AsyncRankScheduler

    monkeypatch.setattr(settings["vllm_config"].scheduler_config, "async_scheduling", True)
    scheduler = AsyncRankScheduler(**settings)
    scheduler.lengthwise_start(Pascal())
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    request = Request("0", [5] * (scheduler.block_size - 1), params, None)
    scheduler.add_request(request)
    first, _ = scheduler.schedule(), scheduler.schedule()
    scheduler.update_from_output(first, ModelRunnerOutput(["0"], {"0": 0}, [[9]]))
    assert request.num_computed_tokens == scheduler.block_size
    assert scheduler._lengthwise_planner.residents.view.growth([request]) == blocks


def test_a_prefill_whose_first_token_is_on_its_way_is_a_decode(settings):
    _, steps, _ = served_by(settings, RAD(tile=4, chunk=200))
    assert [len(step) for step in steps[:4]] == [1] * 4
    started = {name for step in steps[:4] for name in step}
    assert len(started) == 4  # none of them decodes by itself before the others have started
    assert steps[4] == dict.fromkeys(started, 1)
