"""Contiguous runs of KV blocks, a measure of fragments in Phasor's experiment."""

from collections.abc import Mapping
from itertools import pairwise

from scheduler_adapters.placement import InstanceId
from scheduler_adapters.views import InstanceView


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
