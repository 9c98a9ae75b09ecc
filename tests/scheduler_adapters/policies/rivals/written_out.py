"""The slow engine with the order of a policy written out: every request is ranked at every step."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import Phase, Rank, RequestView
from scheduler_adapters.workload.requests import Requests
from tests.scheduler_adapters.engines.decisions import LATENCY, predicted, workload
from tests.scheduler_adapters.simulator.any_policy import assert_equal, serve
from tests.scheduler_adapters.simulator.reference import ReferenceEngine

RUNS = 500
Rule = Callable[[RequestView, float], float]
"""Urgency of a request at a time, lower = sooner."""


class WrittenOut(ReferenceEngine):
    """Waiting requests by the rule at the start of each step, the others by arrival."""

    rule: Rule

    def _fill(self):
        for live in self.live:
            self._ask(live)
        return super()._fill()

    def _ask(self, live):
        waits = live.view.phase is Phase.WAITING
        live.rank = Rank((self.rule(live.view, self.load.now_s),) if waits else ())


def some_requests(seed: int) -> Requests:
    """Requests of up to three clients, with cached prefixes and predicted lengths for some."""
    requests = predicted(seed, workload(seed, count=24, longest=90))
    random = np.random.default_rng(seed)
    cached = random.integers(0, requests.prompt_tokens) * random.integers(0, 2, len(requests))
    return replace(requests, cached_tokens=cached * (seed % 3 > 0))


def some_instance(seed: int) -> Instance:
    return Instance(
        latency=LATENCY, kv_blocks=(14, 40, 200)[seed % 3], max_num_seqs=3 + seed % 4,
        max_tokens=64, block_tokens=16, watermark_fraction=0.0,
    )  # fmt: skip


def assert_written_out(make: Callable[[], Policy], rule: Rule, seeds: range) -> None:
    """Both loops of the simulator against the rule."""
    for seed in seeds:
        requests, instance = some_requests(seed), some_instance(seed)
        slow = WrittenOut(make(), instance)
        slow.rule = rule
        expected = slow.run(requests)
        assert_equal(serve(Engine(make(), instance), requests), expected)
        assert_equal(simulate(requests, make(), instance, loop="compiled"), expected)
