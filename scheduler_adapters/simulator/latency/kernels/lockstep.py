"""Step times of a mixture of experts on data-parallel GPUs that step together.

Each GPU (rank) attends to its own requests; the experts are spread over all of them, so every
block waits for the slowest rank. The group is simulated as one instance: its batch is dealt out
evenly, and a step takes as long as the fullest rank plus the experts plus moving tokens to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lengthwise.errors import SchedulingError
from scheduler_adapters.simulator.latency.facts import ModelFacts
from scheduler_adapters.simulator.latency.kernels.grid import Floats, Grid2
from scheduler_adapters.simulator.latency.kernels.kernel_latency import (
    MAX_TOKENS,
    KernelLatency,
    Link,
    gather_and_scatter_s,
)
from scheduler_adapters.simulator.latency.kernels.layer_profile import read_layer_profile
from scheduler_adapters.simulator.latency.models import Chunk, LatencyModel
from scheduler_adapters.workload.table_files import read_table


@dataclass(frozen=True, kw_only=True, eq=False)
class LockstepLatency(LatencyModel):
    """Time of the fullest rank, plus that of the experts of all ranks."""

    rank: KernelLatency
    """Model of one GPU without its experts."""
    num_ranks: int
    experts_s: Sequence[float]
    """[tokens of the step on all ranks]: experts and collectives of all layers."""

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        ranks: list[list[Chunk]] = [[] for _ in range(self.num_ranks)]
        loads = [0] * self.num_ranks
        for chunk in sorted(prefills, key=lambda chunk: -chunk[1]):
            emptiest = loads.index(min(loads))
            ranks[emptiest].append(chunk)
            loads[emptiest] += chunk[1]
        decodes = -(-num_decodes // self.num_ranks)
        context = round(decode_context * decodes / num_decodes) if num_decodes else 0
        tokens = num_decodes + sum(loads)
        if tokens >= len(self.experts_s):
            raise SchedulingError(
                f"the expert tables end before a step of {tokens} tokens; use a token budget of "
                f"at most {len(self.experts_s) - 1}"
            )
        fullest_s = max(
            self.rank.step_s(decodes, context, chunks) for chunks in ranks if decodes or chunks
        )
        return fullest_s + self.experts_s[tokens]


def read_expert_profile(
    folder: Path, *, model: ModelFacts, num_experts: int, per_token: int, num_ranks: int, link: Link
) -> LockstepLatency:
    """Return the latency model of a layer profile with experts, on `num_ranks` GPUs.

    Each token of `model` picks `per_token` of `num_experts` in each layer.

    Raises:
        DataError: a table is missing or has other columns.
    """
    layer_s = _expert_s(folder, num_experts, per_token, num_ranks)
    layer_s += gather_and_scatter_s(model.hidden, num_ranks, link)
    return LockstepLatency(
        rank=read_layer_profile(folder, layers=model.layers),
        num_ranks=num_ranks,
        experts_s=(model.layers * layer_s).tolist(),
    )


def _expert_s(folder: Path, num_experts: int, per_token: int, num_ranks: int) -> Floats:
    """Return seconds of one rank's experts in one layer, by tokens of all ranks (MAX_TOKENS + 1,).

    The profile counts the tokens on a rank after dispatch. vLLM's default dispatch gathers all
    tokens on every rank, which then holds its share of the experts. The router is taken as fair:
    each token picks its experts at random.
    """
    keys = ["tokens", "activated_experts"]
    table = read_table(folder / "moe.parquet", (*keys, "time_us")).set_index(keys).time_us.unstack()
    grid = Grid2.of_table(table)
    tokens = np.arange(MAX_TOKENS + 1.0)
    untouched_fraction = (1 - per_token / num_experts) ** tokens
    activated = num_experts / num_ranks * (1 - untouched_fraction)
    return np.array(list(map(grid.at, tokens.tolist(), activated.tolist()))) * 1e-6
