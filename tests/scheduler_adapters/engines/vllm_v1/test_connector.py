"""A KV connector with asynchronous loads in the real vLLM, under every kind of policy."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_adapters.engines.vllm_v1.in_process import OfflineConfig, open_engine, scheduler_of
from scheduler_adapters.planner.request_annotations import SCORE, TBT_S
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.rad import RAD
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from tests.scheduler_adapters.engines.vllm_v1.driving import VARIED

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

SEATS = 6
POLICIES: dict[str, Callable[[], Policy]] = {
    "pars": pars,
    "sarathi": lambda: Sarathi(max_tokens=48, max_resident=5),
    "slai": lambda: SLAI(max_tokens=48, max_decodes=4),
    "rad": lambda: RAD(max_started=6, tile=4, chunk=32),
    "round robin": lambda: RoundRobin(quantum_tokens=8),
    "pascal": lambda: Pascal(quantum_tokens=8, max_decodes=4),
}


@pytest.fixture(scope="module")
def engine():
    config = OfflineConfig(
        scheduler="fcfs",
        settings={"think_end": [2]},
        max_num_seqs=SEATS,
        max_num_batched_tokens=256,
        kv_cache_mib=2,
    )
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="DelayedLoads",
        kv_role="kv_both",
        kv_connector_module_path="tests.scheduler_adapters.engines.vllm_v1.delayed_loads",
    )
    with open_engine(
        config, max_model_len=512, dtype="float32", kv_transfer_config=transfer
    ) as engine:
        yield engine


class Served:
    """Requests in an engine under a policy: their tokens, and the steps in which they came."""

    def __init__(self, engine: Any, policy: Policy) -> None:
        self.engine, self.steps = engine, 0
        self.tokens: dict[str, list[int]] = {}
        self.times: dict[str, list[int]] = {}
        engine.reset_prefix_cache()
        scheduler_of(engine).lengthwise_start(policy)

    def add(self, name: str, prompt: int, tokens: int, *, score: float = 0.0) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        hints = {SCORE: score, TBT_S: 0.001 if name.startswith("tight") else 10.0}
        delta = {"output_kind": RequestOutputKind.DELTA}
        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, extra_args=hints, **delta, **VARIED
        )
        ids = random.Random(name).choices(range(3, 500), k=prompt)
        self.tokens[name], self.times[name] = [], []
        self.engine.add_request(name, {"prompt_token_ids": ids}, params)

    def step(self) -> None:
        self.steps += 1
        assert self.steps < 2000
        for output in self.engine.step():
            new = output.outputs[0].token_ids
            self.tokens[output.request_id] += new
            self.times[output.request_id] += [self.steps] * len(new)

    def all(self) -> dict[str, list[int]]:
        while self.engine.has_unfinished_requests():
            self.step()
        return self.tokens


@pytest.fixture(autouse=True)
def loads():
    from tests.scheduler_adapters.engines.vllm_v1 import delayed_loads

    delayed_loads.forget()
    yield delayed_loads
    delayed_loads.hesitates = 0


def compute(engine: Any, **sizes: tuple[int, int]) -> None:
    """Serve requests of these prompts and answers, so that their KV can be loaded."""
    cold = Served(engine, FCFS())
    for name, (prompt, tokens) in sizes.items():
        cold.add(name, prompt, tokens)
    cold.all()


def fill(served: Served) -> None:
    dice = random.Random(0)
    for number in range(14):
        served.add(str(number), dice.randint(33, 150), dice.randint(5, 40), score=number)


@pytest.mark.parametrize(
    ("name", "hesitates"), [*((name, 0) for name in POLICIES), ("pars", 3), ("slai", 3)]
)
def test_requests_whose_kv_is_loaded_get_the_tokens_of_others(engine, loads, name, hesitates):
    cold = Served(engine, FCFS())
    fill(cold)
    expected = cold.all()
    loads.hesitates = hesitates
    warm = Served(engine, POLICIES[name]())
    fill(warm)
    assert warm.all() == expected
    assert len(loads.asked) == 14, "no KV was loaded"
    planner = scheduler_of(engine)._lengthwise_planner
    assert planner is None or not planner.residents


@pytest.mark.parametrize("name", POLICIES)
def test_a_request_whose_kv_was_loaded_runs_beside_long_ones(engine, loads, name):
    compute(engine, loaded=(100, 12))
    served = Served(engine, POLICIES[name]())
    for number in range(3):
        served.add(f"tight {number}", 40, 90)
    for _ in range(6):
        served.step()
    served.add("loaded", 100, 12)
    while len(served.tokens["loaded"]) < 12:
        served.step()
    assert loads.asked
    assert all(len(served.tokens[f"tight {number}"]) < 90 for number in range(3))
    served.all()


@pytest.mark.parametrize("make", [pars, lambda: Sarathi(order="spf", max_resident=1)])
def test_of_two_loaded_requests_the_better_rank_is_seated(engine, loads, make, monkeypatch):
    from scheduler_adapters.engines.vllm_v1.versions import layout_of

    compute(engine, long=(140, 9), short=(70, 9))
    served = Served(engine, make())
    served.add("long", 140, 9, score=9.0)
    served.step()
    served.add("short", 70, 9, score=1.0)
    served.step()
    # Both are being loaded by now; a third has the seat until then.
    monkeypatch.setattr(scheduler_of(engine), layout_of(scheduler_of(engine)).seats, 1)
    served.add("computed", 40, 30, score=5.0)
    served.all()
    assert len(loads.asked) == 2
    assert served.times["computed"][0] < served.times["short"][0]
    assert served.times["short"][-1] < served.times["long"][0]


def test_the_rest_of_a_loaded_request_keeps_to_the_budget(engine, monkeypatch):
    compute(engine, loaded=(140, 9))
    served = Served(engine, Sarathi(max_tokens=8))
    for number in range(5):
        served.add(str(number), 20, 60)
    while not all(served.tokens.values()):
        served.step()
    scheduler, sizes = scheduler_of(engine), []
    schedule = scheduler.schedule

    def noted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        sizes.append(output.total_num_scheduled_tokens)
        return output

    monkeypatch.setattr(scheduler, "schedule", noted)
    served.add("loaded", 140, 9)
    served.all()
    assert max(sizes) == 8


def test_nothing_is_kept_free_for_an_undecided_load(engine, loads):
    compute(engine, loaded=(240, 3))
    loads.hesitates = 9
    served = Served(engine, Sarathi(max_tokens=256))
    served.add("loaded", 240, 3)
    served.step()
    for name in "ab":
        served.add(name, 100, 40)
    served.step()
    assert served.tokens["a"]
    assert served.tokens["b"]
    assert len(served.all()["loaded"]) == 3
