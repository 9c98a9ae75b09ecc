"""The answer that the figures of a replay support: yes, no, or not clear."""

from dataclasses import dataclass
from typing import Final, Literal

from scheduler_adapters.commands.advise.replay import Spread

LEAST_PROMPTS: Final = 200
"""Prompts below which a ranker cannot be judged."""
WORTHWHILE: Final = 0.02
"""Fraction of the mean E2E below which a change, or the time in the queue, counts as none."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer with its reason, for a reader who does not know schedulers."""

    answer: Literal["yes", "no", "unclear"]
    reason: str

    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        starts = {"yes": "Yes", "no": "No", "unclear": "Not clear"}
        return f"{starts[self.answer]}: {self.reason}."


def decide(
    gain: Spread, best: float, queueing_fraction: float, tau_b: Spread, num_prompts: int
) -> Verdict:
    """Return whether ordering by predicted length would help, from the replay at the log's load.

    Args:
        gain: by which fraction PARS lowers the mean E2E of FCFS.
        best: the same of true lengths.
        queueing_fraction: part of the mean E2E under FCFS that requests wait.
        tau_b: of scores and lengths.
        num_prompts: that were scored; 0 where the scores are assumed.
    """
    change = (
        f"{gain.value:+.1%} of the mean E2E latency saved, 95% interval {gain.low:+.1%} to "
        f"{gain.high:+.1%}"
    )
    if queueing_fraction < WORTHWHILE and best < WORTHWHILE:
        reason = (
            f"nothing would change: requests wait for {queueing_fraction:.1%} of their time, so "
            "there is no queue to reorder"
        )
        return Verdict(answer="no", reason=f"{reason} ({change})")
    if not tau_b.low > 0:  # NaN: all lengths, or all scores, are the same
        reason = (
            f"the prompts do not tell how long the answers are: tau_b is {tau_b}, where 0 is chance"
        )
        return Verdict(answer="no", reason=reason)
    if 0 < num_prompts < LEAST_PROMPTS:
        reason = (
            f"{num_prompts} prompts are too few to judge a ranker by, {LEAST_PROMPTS} are needed; "
            "give a longer log"
        )
        return Verdict(answer="unclear", reason=f"{reason} ({change})")
    if gain.high < WORTHWHILE:
        reason = f"it would save too little: {change}; true lengths would save {best:+.1%}"
        return Verdict(answer="no", reason=reason)
    if gain.low < WORTHWHILE:
        reason = f"the ranker's errors decide: {change}; give a longer log, or a better ranker"
        return Verdict(answer="unclear", reason=reason)
    return Verdict(answer="yes", reason=f"{change}; true lengths would save {best:+.1%}")
