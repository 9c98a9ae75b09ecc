"""Page of an advice: the answer, latencies by load, delayed requests, instances, next commands."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import pandas as pd

from lengthwise.report_page import ReportSection, save_table, write_report
from scheduler_adapters.commands.advise import replay, verdict
from scheduler_adapters.commands.advise.replay import SCORED, Spread
from scheduler_adapters.reporting.figures import band_figure

_PANELS: Final = {"e2e_s.mean": "E2E, mean", "e2e_s.p99": "E2E, p99", "ttft_s.p99": "TTFT, p99"}
_COLUMNS: Final = {
    "E2E mean s": "e2e_s.mean",
    "E2E p99 s": "e2e_s.p99",
    "TTFT mean s": "ttft_s.mean",
    "TTFT p99 s": "ttft_s.p99",
    "longest wait s": "longest_wait_s",
}
_NOTHING_TO_DO: Final = " Keep the scheduler that you have; ask again with a log of busier hours."


@dataclass(frozen=True, kw_only=True, eq=False)
class Advice:
    """The answer with its reason and figures, for readers outside the field of schedulers.

    The defaults are those of an answer that needs no ranker.
    """

    figures: replay.Figures
    instances: int
    notes: Sequence[str]
    """Conditions of the figures; assumptions are the first."""
    reason: str
    answer: verdict.Answer = "no"
    policy: str = "fcfs"
    """The recommended policy."""
    carried: verdict.Carried = field(default_factory=dict)
    target: str = ""
    ranker: str = ""
    """Source of the scores."""
    tau_b: Spread | None = None
    commands: Sequence[str] = ()

    @cached_property
    def gains(self) -> dict[str, Spread]:
        return replay.gains(self.figures)

    @property
    def headline(self) -> str:
        starts = {"yes": "Yes", "no": "No", "unclear": "Not clear"}
        after = _NOTHING_TO_DO if self.answer == "no" else ""
        return f"{starts[self.answer]}: {self.reason}.{after}"

    @property
    def quality(self) -> str:
        """Source and quality of the scores."""
        if not self.ranker:
            return "No ranker was needed for this answer."
        return (
            f"Scores are from {self.ranker}. Their tau_b with the true lengths is {self.tau_b} "
            "(1: every pair is in the right order; 0: chance)."
        )

    @property
    def capacity(self) -> str:
        """Instances needed, and the load that the replay's instances carry."""
        if not self.carried:
            return ""
        one = self.policy if self.policy != "fcfs" else SCORED
        (base, before), (load, after) = self.carried["fcfs"], self.carried[one]
        text = (
            f"{self.target}: {counted(self.instances)} carr{'y' if self.instances > 1 else 'ies'} "
            f"{load} times the log's load under {one}, {base} times under FCFS."
        )
        if before is None or after is None:
            missing = " and ".join(n for n in ("fcfs", one) if self.carried[n][1] is None)
            return f"{text} At the log's own load the target is missed under {missing}."
        other = "" if before == after else f"{counted(before)} under FCFS and "
        return f"{text} The log's own load needs {other}{counted(after)} under {one}."


def counted(instances: int) -> str:
    """Return a number of instances in words, "1 instance"."""
    return f"{instances} instance{'s' * (instances != 1)}"


def latency_table(advice: Advice) -> pd.DataFrame:
    """Return a row per policy, at the load of the log: what it saves, latencies, delayed requests.

    The recommended policy has a star.
    """

    def value(policy: str, metric: str) -> float:
        return replay.spread_of(advice.figures, policy, metric).value

    rows = [
        {
            "policy": policy + " *" * (policy == advice.policy),
            "mean E2E saved": "-" if policy == "fcfs" else f"{advice.gains[policy]:%}",
            **{name: f"{value(policy, metric):.3g}" for name, metric in _COLUMNS.items()},
            "end later": "-" if policy == "fcfs" else f"{value(policy, 'later_fraction'):.0%}",
        }
        for policy in dict.fromkeys(policy for policy, _ in advice.figures)
    ]
    return pd.DataFrame(rows)


def spread_rows(advice: Advice) -> pd.DataFrame:
    """Return columns policy, load, metric, value, low, high."""
    rows = [
        (policy, load, metric, *replay.spread_of(advice.figures, policy, metric, load))
        for (policy, load), found in advice.figures.items()
        for metric in found[0]
    ]
    return pd.DataFrame(rows, columns=["policy", "load", "metric", "value", "low", "high"])


def write_advice(advice: Advice, folder: Path) -> list[Path]:
    """Write report.html with its figures and tables; returns the files."""
    table = spread_rows(advice)
    save_table(table, folder / "latencies.csv")
    sections = [ReportSection(heading="Next", text=one) for one in advice.commands]
    sections.append(_latencies(advice, table))
    conditions = "\n\n".join([advice.quality, *advice.notes[1:]])
    sections.append(ReportSection(heading="Conditions", text=conditions))
    lead, title = advice.headline, "Would another order of the queue help?"
    return write_report(folder, title=title, lead=lead, sections=sections)


def _latencies(advice: Advice, table: pd.DataFrame) -> ReportSection:
    drawn = table[table["metric"].isin(list(_PANELS))].replace({"metric": _PANELS})
    drawn = drawn[drawn["policy"].isin(["fcfs", advice.policy, SCORED, "oracle"])]
    drawn = drawn.rename(columns={"metric": "panel", "load": "x"})
    return ReportSection(
        heading="What users would see",
        text=f"{advice.notes[0]}\n\nThe table is at the load of the log. Its first column is the "
        "part of the mean E2E latency under FCFS, the order of arrival, that a policy saves, with "
        "a 95% interval over the ranker's errors. The star is the recommended policy. The oracle "
        "is PARS with the true lengths: no ranker can do better.\n\n" + advice.capacity,
        table=latency_table(advice),
        figure=band_figure(drawn, "times the load of the log"),
        caption="Points: simulated loads. Bands: 95% intervals over the ranker's errors.",
        drawn=("latency_by_load", drawn),
    )
