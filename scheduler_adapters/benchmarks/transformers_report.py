"""The figures of `bench-transformers`: a burst under each scheduler, measured and predicted."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from lengthwise.errors import LengthwiseError
from scheduler_adapters.commands.experiment_settings import load_named
from scheduler_adapters.reporting.latency_tables import text_of
from scheduler_adapters.timeline.latency_metrics import statistic, summarize, token_gaps
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.validation.errors import METRICS
from scheduler_adapters.validation.prediction import MEANS, GraphFit, Served, fit_graphs, predict

log = logging.getLogger(__name__)

_SHOWN: Final = (
    "ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "e2e_p99_s", "normalized_latency_mean_s",
    "normalized_latency_p90_s", "output_tokens_per_s", "num_preemptions",
)  # fmt: skip
_SIMULATED: Final = {
    **{f"simulated_{name}_mean_s": f"{name}_mean_s" for name in MEANS},
    **{f"{name}_{of}_fraction": f"{name}_{of}" for name in METRICS for of in ("mape", "bias")},
}
"""Columns of a row -> their names in the table of what was simulated."""


@dataclass(eq=False)
class Report:
    """Measured and simulated figures, run by run; step times are fitted to the first run only."""

    settings: Mapping[str, Mapping[str, Any]]
    """Of the policies, by name."""
    out: Path | None
    """Folder for summary.csv, agreement.csv and agreement.svg, written anew after each run."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """A flat record of each run."""
    fit: GraphFit | None = None
    """None where the first run has too few steps."""
    _per_request: list[pd.DataFrame] = field(default_factory=list)

    def add(self, name: str, run: Served) -> None:
        """Add a run."""
        row = _measured(name, run.timeline)
        try:
            if not self.rows:
                self.fit = fit_graphs(run.steps, has_graphs=run.has_graphs)
            if self.fit is not None:
                predicted, per_request = predict(run, load_named(name, self.settings), self.fit)
                row |= {"is_fitted_on_itself": not self.rows, **predicted}
                self._per_request.append(per_request.assign(policy=name))
        except LengthwiseError as error:  # what was measured still counts
            log.warning("%s is not simulated: %s", name, error)
        self.rows.append(row)
        if self.out is not None:
            self._write(self.out)

    def text(self) -> str:
        """Tables for a terminal."""
        table = pd.DataFrame(self.rows)
        per_class = [name for name in table if str(name).startswith("tbt_p99_")]
        text = text_of(table[["policy", *_SHOWN, *per_class]])
        if self.fit is None or not self._per_request:
            return text
        simulated = table[["policy", *_SIMULATED]].rename(columns=_SIMULATED)
        for name in simulated.columns:
            if name.endswith(("_mape", "_bias")):
                simulated[name] = simulated[name].map("{:.1%}".format)
        first, fit = table["policy"][0], self.fit.steps
        graphs = ""
        if count := self.fit.num_captures:
            graphs = f" and {count} captures of CUDA graphs ({self.fit.capture_s:.3f} s each)"
        return (
            f"{text}\n\nsimulated, with step times fitted to the {fit.num_steps:,} steps "
            f"({fit.mape_fraction:.1%} off in the mean){graphs} under {first}, so only {first} is "
            f"fitted on itself\n{text_of(simulated)}"
        )

    def _write(self, folder: Path) -> None:
        from lengthwise.report_page import save_figure, save_table
        from scheduler_adapters.reporting.figures import agreement_figure

        save_table(pd.DataFrame(self.rows), folder / "summary.csv")
        if self._per_request:
            table = pd.concat(self._per_request).reset_index()
            save_table(table, folder / "agreement.csv")
            names = {f"e2e_{kind}_s": f"{kind}_s" for kind in ("measured", "simulated")}
            figure = agreement_figure(table.rename(columns=names), "E2E")
            save_figure(figure, folder / "agreement.svg")


def _measured(policy: str, timeline: Timeline) -> dict[str, Any]:
    summary = summarize(timeline)
    row: dict[str, Any] = {
        "policy": policy,
        "num_finished": summary.num_finished,
        "num_preemptions": summary.num_preemptions,
        "output_tokens_per_s": summary.output_tokens_per_s,
        "makespan_s": summary.makespan_s,
    }
    for metric in MEANS:
        for name in ("mean", "p50", "p90", "p99"):
            row[f"{metric}_{name}_s"] = getattr(getattr(summary, f"{metric}_s"), name)
    for name in np.unique(timeline.requests.user_class):
        gaps_s = token_gaps(timeline.take(timeline.requests.user_class == name))
        row[f"tbt_p99_{name}_s"] = statistic(*gaps_s).p99
    return row
