"""Page of an advice: the answer, latencies by load, delayed requests, instances, next commands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pandas as pd

from lengthwise.report_page import ReportSection, save_table, write_report
from scheduler_adapters.commands.advise import replay
from scheduler_adapters.commands.advise.replay import LEARNED, Spread
from scheduler_adapters.reporting.figures import band_figure

_PANELS: Final = {"e2e_s.mean": "E2E, mean", "e2e_s.p99": "E2E, p99", "ttft_s.mean": "TTFT, mean"}
_NOTHING_TO_DO: Final = "Keep the scheduler that you have; ask again with a log of busier hours."
LEAST_PROMPTS: Final = 200
"""Least number of prompts for a judgement of a ranker."""
WORTHWHILE: Final = 0.02
"""Fraction of the mean E2E below which a change, or the time in the queue, counts as zero."""
Answer = Literal["yes", "no", "unclear"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Advice:
    """The answer with its reason and figures, for readers outside the field of schedulers."""

    answer: Answer
    reason: str
    figures: replay.Figures
    gains: Mapping[str, Spread]
    slower: tuple[float, float]
    """Under PARS: share of requests that end later than under FCFS, and p99 of the delay in s."""
    carried: Mapping[str, tuple[Spread, int | None]]
    """Per policy: load within the targets, in multiples of the log's, and instances needed."""
    target: str
    instances: int
    tau_b: Spread
    ranker: str
    notes: Sequence[str]
    """Conditions of the figures."""
    commands: Sequence[str]
    banner: str | None = None

    @property
    def headline(self) -> str:
        """The answer in a sentence, after the best rule without scores where that saves more."""
        starts = {"yes": "Yes", "no": "No", "unclear": "Not clear"}
        learned = (*LEARNED, "oracle")
        rules = {own.value: one for one, own in self.gains.items() if one not in learned}
        saved, ours, start = max(rules), self.gains["pars"].value, ""
        if saved > max(ours, WORTHWHILE):
            start = (
                f"{rules[saved]}, which needs no scores, saves {saved:.1%} of the mean E2E; "
                f"PARS with these scores {ours:.1%}. "
            )
        return f"{start}{starts[self.answer]}: {self.reason}."

    @property
    def quality(self) -> str:
        """Source and quality of the scores."""
        return (
            f"Scores are from {self.ranker}: tau_b {self.tau_b} with the true lengths (1 is the "
            "right order of all pairs, 0 is chance)."
        )

    @property
    def cheapest(self) -> str:
        """The cheapest policy within 2% of the best, in a sentence."""
        name, best = replay.cheapest(self.figures)
        mean_s = {one: replay.spread_of(self.figures, one, "e2e_s.mean") for one in (name, best)}
        needs = {"fcfs": "no change", **dict.fromkeys(LEARNED, "scores")}.get(name, "no scores")
        others = f", where {best} has {mean_s[best]} s" if best != name else "; it is the best"
        return (
            f"Cheapest policy within {replay.WITHIN:.0%} of the best: {name}, which needs {needs}, "
            f"with a mean E2E of {mean_s[name]} s{others}."
        )

    @property
    def capacity(self) -> str:
        """Instances needed, and the load that the replay's instances carry."""
        (base, before), (load, after) = self.carried["fcfs"], self.carried["pars"]
        text = (
            f"{self.target}: on {counted(self.instances)} PARS carries {load} times the log's "
            f"load, FCFS {base} times."
        )
        if before is None or after is None:
            missing = " and ".join(n for n in ("fcfs", "pars") if self.carried[n][1] is None)
            return f"{text} At the log's load {missing} does not meet it with these."
        return f"{text} At the log's load FCFS needs {counted(before)}, PARS {counted(after)}."


def counted(instances: int) -> str:
    """Return a number of instances in words, "1 instance"."""
    return f"{instances} instance{'s' * (instances != 1)}"


def latency_table(advice: Advice) -> pd.DataFrame:
    """Return a row per policy, at the load of the log: TTFT and E2E in seconds."""
    rows = [
        {"policy": policy}
        | {
            f"{label} {name} s": str(replay.spread_of(advice.figures, policy, f"{metric}.{name}"))
            for metric, label in (("ttft_s", "TTFT"), ("e2e_s", "E2E"))
            for name in replay.STATISTICS
        }
        for policy in _policies(advice)
    ]
    return pd.DataFrame(rows)


def group_rows(advice: Advice) -> list[list[str]]:
    """Return a row per group and policy but FCFS: mean E2E under both, and the change."""
    rows = []
    for group in advice.figures["fcfs", 1.0][0]:
        base = replay.spread_of(advice.figures, "fcfs", group)
        for policy in _policies(advice)[1:] if group.startswith("group.") else ():
            own = replay.spread_of(advice.figures, policy, group)
            change = f"{own.value / base.value - 1:+.0%}"
            rows.append([group.removeprefix("group."), policy, str(base), str(own), change])
    return rows


def spread_rows(advice: Advice) -> pd.DataFrame:
    """Return columns policy, load, metric, value, low, high."""
    rows = [
        (policy, load, metric, *replay.spread_of(advice.figures, policy, metric, load))
        for (policy, load), found in advice.figures.items()
        for metric in found[0]
    ]
    return pd.DataFrame(rows, columns=["policy", "load", "metric", "value", "low", "high"])


def _policies(advice: Advice) -> list[str]:
    return list(dict.fromkeys(policy for policy, _ in advice.figures))


def write_advice(advice: Advice, folder: Path) -> list[Path]:
    """Write report.html with its figures and tables; returns the files."""
    banner = f"{advice.banner}. " if advice.banner else ""
    table = spread_rows(advice)
    save_table(table, folder / "latencies.csv")
    sections = [
        _latencies(advice, table),
        *_prices(advice),
        ReportSection(heading="The ranker", text=advice.quality),
        ReportSection(heading="Next", text="\n\n".join(advice.commands) or _NOTHING_TO_DO),
    ]
    lead, title = banner + advice.headline, "Would ordering by predicted length help?"
    return write_report(folder, title=title, lead=lead, sections=sections)


def _latencies(advice: Advice, table: pd.DataFrame) -> ReportSection:
    drawn = table[table["metric"].isin(list(_PANELS))].replace({"metric": _PANELS})
    drawn = drawn.rename(columns={"metric": "panel", "load": "x"})
    return ReportSection(
        heading="What users would see",
        text="Latency at the load of the log, with 95% intervals over the ranker's errors. "
        "FCFS is first come, first served, as engines do by default; PARS puts requests first "
        "whose answers are predicted to be short; the oracle knows every length, which is the "
        "best that a ranker could do.\n\n" + advice.cheapest,
        table=latency_table(advice),
        figure=band_figure(drawn, "times the load of the log"),
        caption="Points: simulated loads; bands: 95% intervals. " + " ".join(advice.notes),
        drawn=("latency_by_load", drawn),
    )


def _prices(advice: Advice) -> Iterator[ReportSection]:
    share, worst_s = advice.slower
    yield ReportSection(
        heading="Who waits longer",
        text=f"Under PARS {share:.0%} of the requests end later than under FCFS, the worst 1% "
        f"of all by {worst_s:.3g} s or more.",
        table=pd.DataFrame(
            group_rows(advice),
            columns=["requests", "policy", "E2E mean s, FCFS", "E2E mean s", "change"],
        ),
    )
    yield ReportSection(
        heading="Instances",
        text=advice.capacity,
        table=pd.DataFrame(
            [(name, *load, count) for name, (load, count) in advice.carried.items()],
            columns=["policy", "times the log's load", "95% low", "95% high", "instances"],
        ),
    )


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
