"""vLLM's asynchronous scheduling under our policies: a step is scheduled before the last one ends.

The CPU build switches it off, so no whole engine runs here. The schedulers are vLLM's and ours, and
two steps are in flight as in `EngineCore.step_with_batch_queue`.
"""

import random
import time
from math import inf
from typing import Any

import pytest

from scheduler_adapters.planner.request_annotations import LIMITS, SCORE, TBT_S
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.rad import RAD
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from tests.scheduler_adapters.engines.vllm_v1.driving import Served, scheduler_parts

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

Steps = list[dict[str, int]]
DICE = random.Random(0)
SIZES = {str(number): DICE.randint(1, 60) for number in range(24)}
"""Tokens of each answer."""
ANSWERS = {name: list(range(3, 3 + size)) for name, size in SIZES.items()}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """What a scheduler is made of, of an engine that was asked to schedule asynchronously."""
    return scheduler_parts(
        tmp_path_factory.mktemp("model"),
        blocks=32,
        max_num_batched_tokens=256,
        async_scheduling=True,
    )


@pytest.fixture(params=[False, True], ids=["all computed", "prefixes cached"])
def settings(parts, request):
    parts["vllm_config"].cache_config.enable_prefix_caching = request.param
    return parts


def serve(scheduler: Any) -> tuple[Steps, dict[str, list[int]]]:
    """Serve requests with two steps in flight; all prompts begin alike."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(32, sha256)
    dice = random.Random(0)
    served = Served(scheduler)
    for name, size in SIZES.items():
        hints = {SCORE: float(size), LIMITS: (0, inf), TBT_S: dice.choice([0.001, 10.0])}
        params = SamplingParams(max_tokens=size, ignore_eos=True, extra_args=hints)
        prompt, at_s = [5] * dice.randint(4, 150), time.time()
        scheduler.add_request(
            Request(name, prompt, params, None, arrival_time=at_s, block_hasher=hasher)
        )
    return served.finish(in_flight=2), served.answers


def served_by(settings: dict[str, Any], policy: Policy) -> tuple[Any, Steps, dict[str, list[int]]]:
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import AsyncRankScheduler

    scheduler = AsyncRankScheduler(**settings)
    scheduler.lengthwise_start(policy)
    return scheduler, *serve(scheduler)


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
    assert tokens == stock_tokens == ANSWERS


def test_pars_starts_the_shortest_first(settings):
    _, steps, tokens = served_by(settings, pars())
    assert tokens == ANSWERS
    started = dict.fromkeys(name for step in steps for name in step)
    assert [SIZES[name] for name in started] == sorted(SIZES.values())


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
    assert tokens == ANSWERS
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
