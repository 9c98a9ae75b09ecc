"""An engine of known step times: a simulator whose steps are noted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.steps import Chunk, StepRecord, chunk_sizes
from scheduler_adapters.validation.prediction import Served
from scheduler_adapters.workload.requests import Requests, make_requests


@dataclass(kw_only=True)
class Noting(LatencyModel):
    """Step times that an engine might have, and a note of each."""

    slowness: float = 1.0
    capture_s: float = 0.0
    """Time of a CUDA graph, captured where tokens or cache reach a new multiple."""
    graphs: set[tuple[int, int]] = field(default_factory=set)
    steps: list[StepRecord] = field(default_factory=list)

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens, pairs = chunk_sizes(prefills)
        seconds = 0.01 + 1e-4 * num_decodes + 1e-6 * decode_context + 2e-5 * tokens + 1e-8 * pairs
        seconds *= self.slowness
        cached = decode_context - num_decodes + sum(before for before, _ in prefills)
        graph = ((num_decodes + tokens + 63) // 64, max(1, (cached + 2047) // 2048))
        seconds += self.capture_s * (graph not in self.graphs)
        self.graphs.add(graph)
        self.steps.append(StepRecord.of(num_decodes, decode_context, prefills, seconds))
        return seconds


def instance_with(latency: LatencyModel) -> Instance:
    return Instance(latency=latency, kv_blocks=4000, max_num_seqs=32, max_tokens=128)


def requests_of(count: int, longest_prompt: int = 100, **columns: Any) -> Requests:
    """Requests at 0 s whose scores are their lengths, all different."""
    random = np.random.default_rng(5)
    lengths = random.permutation(count) * 3 + 1
    return make_requests(
        prompt_tokens=random.integers(2, longest_prompt, count), output_tokens=lengths,
        scores=lengths, **columns,
    )  # fmt: skip


def serve(requests: Requests, policy: str, **engine: float) -> Served:
    latency = Noting(**engine)
    timeline = simulate(requests, load_policy(policy), instance_with(latency))
    return Served(
        requests=requests,
        timeline=timeline,
        steps=latency.steps,
        has_graphs=latency.capture_s > 0,
        instance_with=instance_with,
    )
