"""The answer that the figures of a replay support: yes, no, or not clear."""

from typing import Final, Literal

from scheduler_adapters.commands.advise.replay import Spread

LEAST_PROMPTS: Final = 200
"""Least number of prompts for a judgement of a ranker."""
WORTHWHILE: Final = 0.02
"""Fraction of the mean E2E below which a change, or the time in the queue, counts as zero."""
Answer = Literal["yes", "no", "unclear"]


def decide(
    gain: Spread, best: float, queueing_fraction: float, tau_b: Spread, num_prompts: int
) -> tuple[Answer, str]:
    """Return the answer on ordering by predicted length, and its reason, at the log's load.

    `gain` (of PARS), `best` (of true lengths) and `queueing_fraction` are fractions of FCFS's mean
    E2E. `num_prompts` counts scored prompts; it is 0 for assumed scores.
    """
    change = (
        f"{gain.value:+.1%} of the mean E2E latency saved, 95% interval {gain.low:+.1%} to "
        f"{gain.high:+.1%}"
    )
    if queueing_fraction < WORTHWHILE and best < WORTHWHILE:
        return "no", (
            f"nothing would change: requests wait for {queueing_fraction:.1%} of their time, so "
            f"there is no queue to reorder ({change})"
        )
    if not tau_b.low > 0:  # NaN: all lengths, or all scores, are the same
        return "no", f"the prompts do not predict the lengths: tau_b is {tau_b}, where 0 is chance"
    if 0 < num_prompts < LEAST_PROMPTS:
        return "unclear", (
            f"{num_prompts} prompts are too few to judge a ranker by, {LEAST_PROMPTS} are needed; "
            f"give a longer log ({change})"
        )
    if gain.high < WORTHWHILE:
        return "no", f"it would save too little: {change}; true lengths would save {best:+.1%}"
    if gain.low < WORTHWHILE:
        text = f"the ranker's errors decide: {change}; give a longer log, or a better ranker"
        return "unclear", text
    return "yes", f"{change}; true lengths would save {best:+.1%}"
