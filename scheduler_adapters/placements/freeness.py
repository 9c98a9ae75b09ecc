"""Virtual freeness, Phasor's measure of load: 1 when idle, 0 when full, below 0 when overloaded."""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.placement import InstanceId
from scheduler_adapters.views import InstanceView, RequestView

MIN_R2 = 0.99
"""Phasor asks for more than this."""
_FORMAT = "lengthwise-prefill-cost/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillCost:
    """Time of a prefill of l tokens: (alpha l^2 + beta l) / peak_flop_per_s."""

    alpha: float
    """FLOP per token^2."""
    beta: float
    """FLOP per token, of the reference model."""
    peak_flop_per_s: float
    model: str
    device: str

    def seconds(self, tokens: float) -> float:
        """Return the time of one prompt's prefill."""
        return (self.alpha * tokens**2 + self.beta * tokens) / self.peak_flop_per_s


PAPER = PrefillCost(
    alpha=4.25e7, beta=6.80e9, peak_flop_per_s=121e12, model="qwen2.5-7b", device="v100-32g"
)
"""The paper's constants, which have no unit there, taken as TFLOP. They make a prompt of 1,024
tokens take 0.43 s, four times what the paper measures: calibrate instead."""


def read_prefill_cost(path: str | Path, *, force: bool = False) -> PrefillCost:
    """Read a file that `python -m training calibrate` wrote.

    Raises:
        DataError: it is no such file.
        ConfigError: its fit is poor (R^2 below .99), unless `force`.
    """
    try:
        content = json.loads(Path(path).read_text())
        if content["format"] != _FORMAT:
            raise ValueError(f"format is {content['format']!r}")
        numbers = {name: float(content[name]) for name in ("alpha", "beta", "peak_flop_per_s")}
        cost = PrefillCost(**numbers, model=content["model"], device=content["device"])
        r2 = float(content["r2"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = f"is no prefill cost ({error!r}); write one by `python -m training calibrate`"
        raise DataError(said, path=path) from error
    if not (r2 >= MIN_R2 or force):
        plot = content.get("figure", "the figure of its MLflow run")
        raise ConfigError(
            f"R^2 is {r2:.4f} in {path}, below {MIN_R2}; look at {plot} and measure again, or set "
            "force_cost"
        )
    return cost


def fit_prefill_cost(
    tokens: Sequence[float],
    seconds: Sequence[float],
    *,
    peak_flop_per_s: float,
    model: str,
    device: str,
) -> tuple[PrefillCost, float]:
    """Return the least-squares fit to prefills without noise, as a simulator's are, and its R^2."""
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


class Slots:
    """KV memory as an allocator leaves it that gives each request one run of blocks.

    A decode gets the first run that has room for its end; one that outgrows its run gets another.
    Who finds no run is left out.
    """

    def __init__(self, expected_output: Callable[[RequestView], int]) -> None:
        self.expected_output = expected_output
        self._runs: dict[InstanceId, dict[str, tuple[int, int]]] = {}
        """By instance and request: the first block and the number of blocks."""
        self._unusable: dict[InstanceId, float] = {}

    def look(self, view: InstanceView) -> None:
        """Take the decodes of an instance as they are now."""
        wanted = {
            one.request_id: view.blocks_of(
                max(one.context_tokens, one.prompt_tokens + self.expected_output(one))
            )
            for one in sorted(view.decodes(), key=lambda one: one.number)
        }
        runs = _runs_of(wanted, self._runs.get(view.instance_id, {}), view.total_blocks)
        gaps = [blocks for _, blocks in _gaps(runs, view.total_blocks)]
        self._runs[view.instance_id] = runs
        self._unusable[view.instance_id] = 1 - max(gaps) / sum(gaps) if gaps else 0.0

    def unusable(self, instance: InstanceId) -> float:
        """Return 1 - the longest free run / all that is free."""
        return self._unusable.get(instance, 0.0)


def _runs_of(
    wanted: Mapping[str, int], before: Mapping[str, tuple[int, int]], total_blocks: int
) -> dict[str, tuple[int, int]]:
    """Return the run of each request, those kept that are long enough."""
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


class Freeness:
    """Phi of prefill and decode instances.

    Args:
        parameter_ratio: parameters of the served model / those of the model of `cost` (P_m).
        output_tokens: expected output of a request, where no quantile is predicted.
        reference_tokens: of the request whose blocks tell what is a fragment; None: the first that
            waits for a decode instance, or the 90% quantile of the last hundred.
        card_blocks: M_total, where it is to be the card and not its KV memory.
        has_slots: whether fragments are what `Slots` leaves beside the longest free run.

    Source: Phasor, section on virtual freeness. The paper only describes fragments (H_frag): free
    blocks that a large request cannot use, so those that remain when as many as fit are taken.
    """

    def __init__(
        self,
        cost: PrefillCost,
        *,
        ttft_slo_s: float,
        parameter_ratio: float,
        output_tokens: int,
        reference_tokens: int | None,
        card_blocks: int | None,
        has_slots: bool = False,
    ) -> None:
        self.per_square = cost.alpha / (cost.peak_flop_per_s * ttft_slo_s)
        self.per_token = parameter_ratio * cost.beta / (cost.peak_flop_per_s * ttft_slo_s)
        self.output_tokens = output_tokens
        self.reference_tokens = reference_tokens
        self.card_blocks = card_blocks
        self.slots = Slots(self.expected_output) if has_slots else None
        self.recent: deque[int] = deque(maxlen=100)
        self.waiting_tokens: int | None = None
        self._large: dict[int, int] = {}
        """Blocks of the reference request, by the size of a block."""

    def note(self, request: RequestView) -> None:
        """Note a request that arrived."""
        self.recent.append(request.prompt_tokens + self.expected_output(request))
        self._large.clear()

    def expected_output(self, request: RequestView) -> int:
        """Return the predicted median of its output, or what is expected of any."""
        return request.expected_tokens(self.output_tokens)

    def prefill(self, view: InstanceView, tokens: int = 0) -> float:
        """Return Phi of a prefill instance, with a prompt of `tokens` more."""
        squares = view.prefill_squares + tokens * tokens
        return 1 - self.per_square * squares - self.per_token * (view.prefill_tokens + tokens)

    def decode(self, view: InstanceView, blocks: int = 0) -> float:
        """Return Phi of a decode instance, with `blocks` more in use."""
        free, total = view.unclaimed_blocks - blocks, view.total_blocks
        return 1 - (total - free + self.fragment(view, blocks)) / (self.card_blocks or total)

    def fragment(self, view: InstanceView, blocks: int = 0) -> int:
        """Return the free blocks that a large request cannot use (H_frag), as in `decode`."""
        free = max(0, view.unclaimed_blocks - blocks)
        if self.slots is None:
            return free % self.large_blocks(view)
        return round(free * self.slots.unusable(view.instance_id))

    def large_blocks(self, view: InstanceView) -> int:
        """Return the blocks of the reference request (b)."""
        if view.block_tokens not in self._large:
            recent = sorted(self.recent) or [1]
            p90 = recent[int(0.9 * (len(recent) - 1))]
            tokens = self.reference_tokens or self.waiting_tokens or p90
            self._large[view.block_tokens] = view.blocks_of(tokens)
        return self._large[view.block_tokens]

    def waits(self, tokens: int | None) -> None:
        """Note of how many tokens the first request is that waits for a decode instance."""
        self.waiting_tokens = tokens
        self._large.clear()
