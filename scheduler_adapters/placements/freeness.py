"""Virtual freeness, Phasor's measure of load: 1 when idle, 0 when full, below 0 when overloaded."""

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.views import InstanceView, RequestView

MIN_R2 = 0.99
"""Least R^2 of a fit, as in the paper."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillCost:
    """Time of a prefill of l tokens: (alpha l^2 + beta l) / peak_flop_per_s."""

    alpha: float
    """FLOP per token^2."""
    beta: float
    """FLOP per token."""
    peak_flop_per_s: float
    model: str
    device: str

    def seconds(self, tokens: float) -> float:
        """Return the prefill time of one prompt."""
        return (self.alpha * tokens**2 + self.beta * tokens) / self.peak_flop_per_s


PAPER = PrefillCost(
    alpha=4.25e7, beta=6.80e9, peak_flop_per_s=121e12, model="qwen2.5-7b", device="v100-32g"
)
"""Constants of the paper, which have no unit there, taken as TFLOP. A prompt of 1,024 tokens then
takes 0.43 s, four times the paper's measurement: calibrate instead."""


def read_prefill_cost(path: str | Path, *, force: bool = False) -> PrefillCost:
    """Read a file written by `python -m training calibrate`.

    Raises:
        DataError: the file has another content.
        ConfigError: the fit is poor (R^2 below .99), unless `force`.
    """
    try:
        content = json.loads(Path(path).read_text())
        if content["format"] != "lengthwise-prefill-cost/1":
            raise ValueError(f"format is {content['format']!r}")
        numbers = {name: float(content[name]) for name in ("alpha", "beta", "peak_flop_per_s")}
        cost = PrefillCost(**numbers, model=content["model"], device=content["device"])
        r2 = float(content["r2"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        flaw = f"is no prefill cost ({error!r}); write one by `python -m training calibrate`"
        raise DataError(flaw, path=path) from error
    if not (r2 >= MIN_R2 or force):
        plot = content.get("figure", "the figure of its MLflow run")
        raise ConfigError(
            f"R^2 is {r2:.4f} in {path}, below {MIN_R2}; look at {plot} and measure again, or set "
            "force_cost"
        )
    return cost


class Freeness:
    """Phi of prefill and decode instances.

    H_frag is here the remainder: the free blocks that remain when as many large requests as fit
    are taken in. The large request is the first without a decode instance, else the 90% quantile of
    the last hundred. The paper only describes free blocks that a large request cannot use.

    Args:
        cost: prefill cost of the served model, so that P_m of the paper is 1.
        output_tokens: expected output of a request without a prediction.

    Source: Phasor, section on virtual freeness.
    """

    def __init__(self, cost: PrefillCost, *, ttft_slo_s: float, output_tokens: int) -> None:
        self.per_square = cost.alpha / (cost.peak_flop_per_s * ttft_slo_s)
        self.per_token = cost.beta / (cost.peak_flop_per_s * ttft_slo_s)
        self.output_tokens = output_tokens
        self.recent: deque[int] = deque(maxlen=100)
        self.waiting_tokens: int | None = None
        self.large_tokens = 1
        """Tokens of the large request."""

    def note(self, request: RequestView) -> None:
        """Add an arrived request to the last hundred."""
        self.recent.append(request.prompt_tokens + request.expected_tokens(self.output_tokens))
        self.waits(self.waiting_tokens)

    def waits(self, tokens: int | None) -> None:
        """Set the tokens of the first request without a decode instance."""
        self.waiting_tokens, recent = tokens, sorted(self.recent) or [1]
        self.large_tokens = tokens or recent[int(0.9 * (len(recent) - 1))]

    def prefill(self, view: InstanceView) -> float:
        """Return Phi of a prefill instance."""
        return 1 - self.per_square * view.prefill_squares - self.per_token * view.prefill_tokens

    def decode(self, view: InstanceView, blocks: int = 0) -> float:
        """Return Phi of a decode instance, with `blocks` more in use."""
        free, total = view.unclaimed_blocks - blocks, view.total_blocks
        return 1 - (total - free + self.remainder(view, blocks)) / total

    def remainder(self, view: InstanceView, blocks: int = 0) -> int:
        """Return the free blocks beside the large requests that fit, with `blocks` more in use."""
        return max(0, view.unclaimed_blocks - blocks) % self.large_blocks(view)

    def large_blocks(self, view: InstanceView) -> int:
        """Return the blocks of the large request (b)."""
        return view.blocks_of(self.large_tokens)
