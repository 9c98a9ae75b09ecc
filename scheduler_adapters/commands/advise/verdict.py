"""Verdict of an advice: the recommended policy, what it saves, its price, and the answer."""

from collections.abc import Collection, Mapping
from typing import Final, Literal

from scheduler_adapters.commands.advise.replay import (
    LEARNED,
    LOADS,
    Figures,
    Spread,
    gains,
    spread_of,
)

Answer = Literal["yes", "no", "unclear"]
Carried = Mapping[str, tuple[Spread, int | None]]
"""Per policy: load within the targets, in multiples of the log's, and instances needed."""
LEAST_PROMPTS: Final = 200
"""Least number of prompts for a judgement of a ranker."""
WORTHWHILE: Final = 0.02
"""Fraction of the mean E2E below which a change counts as nothing."""
TAILS: Final = {"TTFT p99": "ttft_s.p99", "E2E p99": "e2e_s.p99", "longest wait": "longest_wait_s"}


def nothing_to_gain(found: Figures) -> str | None:
    """Return why no order of the queue would help, by FCFS and true lengths; None if one may."""
    if (best := gains(found)["oracle"].value) >= WORTHWHILE:
        return None
    parts = (spread_of(found, "fcfs", f"{name}.mean").value for name in ("queueing_s", "e2e_s"))
    waiting = next(parts) / next(parts)
    why = "there is no queue to reorder" if waiting < WORTHWHILE else "the order hardly matters"
    return (
        f"{why}. Requests wait for {waiting:.1%} of their time, and true lengths would save "
        f"{best:z.1%} of the mean E2E. At {LOADS[-1]:g} times the load they would save "
        f"{gains(found, LOADS[-1])['oracle'].value:z.1%}"
    )


def growths(found: Figures, policy: str) -> dict[str, tuple[float, float, float]]:
    """Return each tail under FCFS and under a policy, and its growth as a fraction."""
    both = ("fcfs", policy)
    pairs = {n: [spread_of(found, one, tail).value for one in both] for n, tail in TAILS.items()}
    return {name: (a, b, b / a - 1 if a else float(b > 0)) for name, (a, b) in pairs.items()}


def recommended(found: Figures, tolerance: float, *, without: Collection[str] = ()) -> str:
    """Return the policy with the least harm and cost within 2% of the best mean E2E.

    The best is one whose tails grow by no more than `tolerance`, if such a policy saves 2%. FCFS is
    cheaper than a rule without learning, and that than a learned order. The oracle is none.
    """
    policies = [one for one, load in found if load == 1 and one not in ("oracle", *without)]
    mean_s = {one: spread_of(found, one, "e2e_s.mean").value for one in policies}
    harm = {
        one: sum(max(0.0, growth - tolerance) for *_, growth in growths(found, one).values())
        for one in policies
    }
    gentle = [one for one in policies if not harm[one]]  # FCFS at least
    if min(mean_s[one] for one in gentle) > (1 - WORTHWHILE) * mean_s["fcfs"]:
        gentle = policies
    most_s = (1 + WORTHWHILE) * min(mean_s[one] for one in gentle)

    def price(one: str) -> tuple[float, bool, bool, float]:
        return harm[one], one in LEARNED, one != "fcfs", mean_s[one]

    return min((one for one in gentle if mean_s[one] <= most_s), key=price)


def decide(
    found: Figures,
    policy: str,
    carried: Carried,
    tolerance: float,
    *,
    tau_b: Spread,
    num_prompts: int,
) -> tuple[Answer, str]:
    """Return the answer on a recommended policy, and its reason, at the log's load.

    `num_prompts` counts scored prompts; it is 0 for assumed scores.
    """
    saved = {one: gain for one, gain in gains(found).items() if one not in ("fcfs", "oracle")}
    best = max(saved, key=lambda one: saved[one].value)
    if policy in ("fcfs", *LEARNED):
        learned = policy if policy in saved else max(LEARNED, key=lambda one: saved[one].value)
        gain = saved[learned]
        if 0 < num_prompts < LEAST_PROMPTS:
            text = f"{num_prompts} prompts are too few to judge a ranker by"
            return "unclear", f"{text}, {LEAST_PROMPTS} are needed; give a longer log"
        if not tau_b.low > 0:  # NaN: all lengths, or all scores, are the same
            text = f"tau_b is {tau_b}, where 0 is chance"
            return "no", f"the prompts do not predict the lengths: {text}"
        if gain.low < WORTHWHILE <= gain.high and gain.value > 0:
            text = f"{learned} saves {gain:%} of the mean E2E; give a longer log or better ranker"
            return "unclear", f"the ranker's errors decide. {text}"
    if policy == "fcfs":
        text = f"the best other policy, {best}, saves {saved[best]:%} of the mean E2E"
        return "no", f"{text}, and less than {WORTHWHILE:.0%} is nothing"
    tails = growths(found, policy)
    worse = [name for name, (*_, growth) in tails.items() if growth > tolerance]
    if carried[policy][0].value < (1 - tolerance) * carried["fcfs"][0].value:
        worse.append("the load within the target")
    each = [f"{n} goes from {a:.3g} to {b:.3g} s ({g:+z.0%})" for n, (a, b, g) in tails.items()]
    later, delay_s = (spread_of(found, policy, n).value for n in ("later_fraction", "delay_s.p99"))
    text = (
        f"saves {saved[policy]:%} of the mean E2E. The price: {_listed(each)}. {later:.0%} of the "
        f"requests end later, the worst 1% of all by {delay_s:.3g} s or more"
    )
    limit = f"worse by more than {tolerance:.0%} (--tolerance)"
    if not worse:
        return "yes", f"serve with {policy}. It {text}. Nothing is {limit}"
    are = "is" if len(worse) == 1 else "are"
    return "unclear", f"{policy} {text}. Here {_listed(worse)} {are} {limit}: weigh gain and price"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])
