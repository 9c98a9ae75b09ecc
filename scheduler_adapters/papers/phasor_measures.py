"""Two measures of Phasor's experiment: prefill cost of a simulated GPU, and contiguous KV runs."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from scheduler_adapters.placement import InstanceId
from scheduler_adapters.placements.freeness import PrefillCost
from scheduler_adapters.views import InstanceView


def fit_prefill_cost(
    tokens: Sequence[float],
    seconds: Sequence[float],
    *,
    peak_flop_per_s: float,
    model: str,
    device: str,
) -> tuple[PrefillCost, float]:
    """Return the least-squares fit to prefill times without noise, and its R^2."""
    s2, s3, s4 = (sum(n**power for n in tokens) for power in (2, 3, 4))
    t1, t2 = (sum(s * n**power for n, s in zip(tokens, seconds, strict=True)) for power in (1, 2))
    determinant = s4 * s2 - s3 * s3
    square_s, token_s = (t2 * s2 - t1 * s3) / determinant, (t1 * s4 - t2 * s3) / determinant
    missed = sum(
        (s - square_s * n * n - token_s * n) ** 2 for n, s in zip(tokens, seconds, strict=True)
    )
    r2 = 1 - missed / sum((s - fmean(seconds)) ** 2 for s in seconds)
    alpha, beta = square_s * peak_flop_per_s, token_s * peak_flop_per_s
    cost = PrefillCost(
        alpha=alpha, beta=beta, peak_flop_per_s=peak_flop_per_s, model=model, device=device
    )
    return cost, r2


class ContiguousRuns:
    """KV memory under an allocator that gives each decode one contiguous run of blocks.

    A decode takes the first run with room for its expected end, and a new one when it outgrows it.
    A decode without a fitting run is left out.
    """

    def __init__(self, output_tokens: int) -> None:
        self.output_tokens = output_tokens
        self._runs: dict[InstanceId, dict[str, tuple[int, int]]] = {}
        """By instance and request: the first block and the number of blocks."""
        self._unusable: dict[InstanceId, float] = {}

    def update(self, view: InstanceView) -> None:
        """Place the present decodes of an instance."""
        wanted = {
            one.request_id: view.blocks_of(
                max(one.context_tokens, one.prompt_tokens + self.output_tokens)
            )
            for one in sorted(view.decodes(), key=lambda one: one.number)
        }
        runs = _runs_of(wanted, self._runs.get(view.instance_id, {}), view.total_blocks)
        gaps = [blocks for _, blocks in _gaps(runs, view.total_blocks)]
        self._runs[view.instance_id] = runs
        self._unusable[view.instance_id] = 1 - max(gaps) / sum(gaps) if gaps else 0.0

    def unusable(self, instance: InstanceId) -> float:
        """Return 1 - the longest free run / all free blocks."""
        return self._unusable.get(instance, 0.0)


def _runs_of(
    wanted: Mapping[str, int], before: Mapping[str, tuple[int, int]], total_blocks: int
) -> dict[str, tuple[int, int]]:
    """Return the run of each request; an earlier run is kept if it is long enough."""
    runs = {
        name: (first, blocks)
        for name, (first, blocks) in before.items()
        if name in wanted and blocks >= wanted[name]
    }
    for name, blocks in wanted.items():
        if name in runs:
            continue
        gaps = _gaps(runs, total_blocks)
        first = next((first for first, room in gaps if room >= blocks), None)
        if first is not None:
            runs[name] = first, blocks
    return runs


def _gaps(runs: Mapping[str, tuple[int, int]], total_blocks: int) -> list[tuple[int, int]]:
    """Return the first block and the number of blocks of each free run."""
    bounds = [(0, 0), *sorted((first, first + blocks) for first, blocks in runs.values())]
    pairs = pairwise([*bounds, (total_blocks, total_blocks)])
    return [(end, start - end) for (_, end), (start, _) in pairs if start > end]
