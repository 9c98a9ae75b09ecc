"""A hybrid model in the real vLLM: every second layer has a sliding window."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed.engine import settings_of
from scheduler_adapters.engines.vllm_v1.in_process import OfflineConfig, open_engine, scheduler_of
from scheduler_adapters.planner.request_annotations import SCORE, TBT_S
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from tests.scheduler_adapters.engines.decisions import Dice
from tests.scheduler_adapters.engines.vllm_v1 import driving

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

COUNT, WINDOW, MAX_LEN, BLOCKS = 14, 64, 512, 34
POLICIES: dict[str, Callable[[], Policy]] = {
    "pars": pars,
    "sarathi": lambda: Sarathi(max_tokens=64, max_resident=6),
    "slai": lambda: SLAI(max_tokens=64, max_resident=6, max_decodes=3),
    "round robin": lambda: RoundRobin(quantum_tokens=20),
    "pascal": lambda: Pascal(quantum_tokens=12, demote_above_tokens=90),
    "displacing dice": lambda: Dice(2, displaces=True),
}


def make_model(path: Path) -> Path:
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LEN,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        architectures=["Gemma3ForCausalLM"],
    )
    Gemma3ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def live_engine(tmp_path_factory):
    config = OfflineConfig(
        scheduler="fcfs",
        settings={"think_end": [2]},
        model=make_model(tmp_path_factory.mktemp("hybrid")),
        max_num_seqs=8,
        max_num_batched_tokens=128,
    )
    # Not three of the longest requests fit: one takes up to 9 + 7 blocks.
    with open_engine(
        config,
        max_model_len=MAX_LEN,
        dtype="float32",
        enable_prefix_caching=True,
        num_gpu_blocks_override=BLOCKS + 1,
    ) as engine:
        yield engine


@pytest.fixture
def engine(live_engine, request):
    """The engine, which caches prefixes if the parameter is true."""
    core, own = live_engine.engine_core.engine_core, scheduler_of(live_engine)
    own.cache_config.enable_prefix_caching = request.param
    core.scheduler = type(own)(**settings_of(own))
    yield live_engine
    core.scheduler = own


def answers(engine: Any) -> list[list[int]]:
    dice, requests = random.Random(0), []
    beginning = dice.choices(range(3, 500), k=96)
    for row in range(COUNT):
        shared = beginning if dice.random() < 0.5 else []
        prompt = shared + random.Random(row).choices(range(3, 500), k=dice.randint(4, 120))
        size, hints = dice.randint(1, 60), {SCORE: dice.random(), TBT_S: dice.choice([0.001, 10.0])}
        more = {"max_tokens": size, "extra_args": hints}
        requests.append((str(row), prompt, more | driving.VARIED))
    made = driving.answers(engine, *requests)
    return [list(made[str(row)].token_ids) for row in range(COUNT)]


@pytest.fixture(scope="module")
def stock(live_engine):
    """What vLLM's own scheduler answers."""
    from vllm.v1.core.sched.scheduler import Scheduler

    core, own = live_engine.engine_core.engine_core, scheduler_of(live_engine)
    core.scheduler = Scheduler(**settings_of(own))
    found = answers(live_engine)
    core.scheduler = own
    return found


@pytest.mark.parametrize(
    ("engine", "name"),
    [*((True, name) for name in POLICIES), (False, "slai"), (False, "displacing dice")],
    indirect=["engine"],
)
def test_a_hybrid_model_short_of_memory_answers_the_same(engine, stock, name):
    scheduler = scheduler_of(engine)
    assert len(scheduler.kv_cache_config.kv_cache_groups) == 2
    scheduler.lengthwise_start(POLICIES[name]())
    own_steps, fewest_free = 0, BLOCKS
    schedule, pool = scheduler.schedule, scheduler.kv_cache_manager.block_pool

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal own_steps, fewest_free
        output = schedule(*args, **kwargs)
        own_steps += scheduler._lengthwise_stalled
        fewest_free = min(fewest_free, pool.get_num_free_blocks())
        return output

    scheduler.schedule = counted
    assert answers(engine) == stock
    assert fewest_free <= 3, "memory was never short"
    assert own_steps == 0, "a planned step had no room in the engine"
    planner = scheduler._lengthwise_planner
    assert planner is None or not planner.residents
    assert pool.get_num_free_blocks() == BLOCKS
