"""Tensor parallelism in the real vLLM: two workers, and one scheduler that serves them."""

from math import inf
from typing import Any

import pytest

from scheduler_adapters.engines.vllm_v1.in_process import OfflineConfig, open_engine, scheduler_of
from scheduler_adapters.planner.request_annotations import LIMITS, SCORE
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from tests.scheduler_adapters.engines.vllm_v1.driving import answers

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

COUNT, SEATS = 8, 4
SIZES = {str(number): 3 + 5 * number % 17 for number in range(COUNT)}
"""Tokens of each answer."""


@pytest.fixture(scope="module")
def engine():
    # A worker's arithmetic in bfloat16 depends on who shares a step.
    arguments = {"tensor_parallel_size": 2, "dtype": "float32", "max_model_len": 256}
    with open_engine(OfflineConfig(scheduler="pars", max_num_seqs=SEATS), **arguments) as engine:
        assert engine.vllm_config.parallel_config.world_size == 2
        yield engine


def serve(engine: Any) -> dict[str, list[int]]:
    """The answers, in the order in which they ended."""
    requests = []
    for name, size in SIZES.items():
        more = {"max_tokens": size, "ignore_eos": True, "detokenize": False}
        requests.append(
            (name, [3 + int(name), 5, 8], more | {"extra_args": {SCORE: size, LIMITS: (0, inf)}})
        )
    return {name: list(one.token_ids) for name, one in answers(engine, *requests).items()}


def test_two_workers_give_every_policy_the_same_answers(engine):
    policies = {"fcfs": FCFS(), "pars": pars(), "slai": SLAI(max_decodes=3)}
    made = {}
    for name, policy in policies.items():
        scheduler_of(engine).lengthwise_start(policy)
        made[name] = serve(engine)
    assert {name: len(tokens) for name, tokens in made["fcfs"].items()} == SIZES
    assert all(tokens == made["fcfs"] for tokens in made.values())
    assert list(made["pars"])[:SEATS] == sorted(SIZES, key=SIZES.__getitem__)[:SEATS]
