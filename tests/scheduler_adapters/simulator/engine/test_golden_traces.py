"""Every decision of every policy on a small crowded workload, step by step, as it has always been.

`tests/golden/<policy>.crowd.jsonl` holds one line per step: its end, the requests that decode,
those that prefill with their tokens, and those that were evicted while it was filled. After a new
policy, or a change that is meant to change decisions:
`pytest --regen-golden tests/scheduler_adapters/simulator/test_golden_traces.py`, and read the diff.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from scheduler_adapters.policies.prefill_first import Orca
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import POLICIES, load_policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests
from tests.scheduler_adapters.simulator.any_policy import OFFLOADING, SMALL, EveryToken, serve

GOLDEN = Path(__file__).parents[3] / "golden"

LATENCY = AffineLatency(base_s=0.01, per_token_s=0.001)

SCARCE = Instance(
    latency=LATENCY,
    kv_blocks=9,
    max_num_seqs=4,
    max_tokens=48,
    host=HostLink(kv_bytes_per_token=1, bytes_per_s=2000.0),
)
"""Less memory than four of the requests need, and a link that takes steps for a copy."""

ALIASES = {"pointwise", "listwise", "oracle"}
"""PARS with other scores."""

MAKERS = {
    **{name: lambda name=name: load_policy(name) for name in POLICIES if name not in ALIASES},
    "sarathi-spf": lambda: Sarathi(order="spf"),
    "pars-starving": lambda: pars(starve_after_s=0.1),
    "slai-fcfs": lambda: SLAI(order="fcfs", offset=2.0),
    "rad-small": lambda: RAD(max_started=3, tile=2, chunk=16),
    "rad-twin-small": lambda: RADTwin(max_started=3, tile=2, chunk=16),
    "orca-reserved": lambda: Orca(reserved_blocks=4),
    **SMALL,
    **OFFLOADING,
}


def crowd() -> Requests:
    """Ten requests that arrive faster than they can be served; every fourth has no score."""
    random = np.random.default_rng(7)
    output_tokens = random.integers(2, 24, 10)
    scores = output_tokens + random.normal(0, 4, 10).round(1)
    scores[::4] = np.nan
    return make_requests(
        prompt_tokens=random.integers(4, 60, 10),
        output_tokens=output_tokens,
        reasoning_tokens=output_tokens // 2,
        arrival_s=arrivals_s(10, rate_per_s=20.0, seed=7),
        scores=scores,
        user_class=np.where(np.arange(10) % 2, "paying", "free"),
        tbt_s=np.where(np.arange(10) % 2, 0.05, 0.3),
    )


class StepLines(EngineObserver):
    """Writes a line for every step."""

    def __init__(self, engine: Engine) -> None:
        self.step = engine.step
        self.lines: list[str] = []
        self.evicted_rows: list[int] = []
        engine.observe(self)

    def evicted(self, request, now_s):
        self.evicted_rows.append(request.number)

    def ran(self, load, duration_s, num_resident):
        step = {
            "time": round(load.now_s, 9),
            "decodes": sorted(row for batch in self.step.batches for row in batch.members),
            "prefills": [[live.row, chunk] for live, chunk in self.step.chunks],
            "evicted": self.evicted_rows,
        }
        self.lines.append(json.dumps(step, separators=(",", ":")) + "\n")
        self.evicted_rows = []


@pytest.mark.parametrize("name", MAKERS)
def test_every_policy_decides_as_it_always_has(name, pytestconfig):
    engine = Engine(MAKERS[name](), SCARCE, observers=[EveryToken()])
    steps = StepLines(engine)
    serve(engine, crowd())
    path = GOLDEN / f"{name}.crowd.jsonl"
    if pytestconfig.getoption("--regen-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text("".join(steps.lines))
    assert steps.lines == path.read_text().splitlines(keepends=True)


def test_the_workload_evicts_under_most_policies():
    """Otherwise golden traces would miss half of the rules."""
    evicting = [
        name for name in MAKERS if serve(Engine(MAKERS[name](), SCARCE), crowd()).preemptions.sum()
    ]
    assert len(evicting) > len(MAKERS) / 2
