"""`python -m training promote`: a version becomes champion only if it is provably better."""

import math
from dataclasses import dataclass, field
from typing import Any

from lengthwise.agreement import tau_b
from lengthwise.bundle import ModelBundle
from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import BundleError, ConfigError, DataError
from lengthwise.mlflow_store import CHAMPION
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.data.labels import observed, texts
from training.data.provenance import held_out_prompts
from training.data.records import Dataset
from training.evaluation.ranking_metrics import tau_b_difference_ci
from training.export.bundle_scores import score_prompts
from training.release.registry import open_store


@dataclass(frozen=True, kw_only=True)
class PromoteOptions(StoreOptions):
    """The version, and the prompts to compare it on."""

    name: str = field(metadata=POSITIONAL)
    """Registered model."""
    version: str = field(metadata=POSITIONAL)
    """Number of the version."""
    force: bool = False
    """Promote even if not proven better."""
    data: str | None = None
    """The test.parquet that fit wrote; default: the prompts are found again in the data set."""
    data_dir: str | None = None
    """Folder of the version's data set."""


def main(options: PromoteOptions, output: OutputOptions) -> int:
    """Make a registered version the champion, if it is provably better.

    Both rank the version's own test prompts; the 95% paired bootstrap interval of the difference in
    tau_b must lie above 0. Without a champion, the interval of the version's own tau_b must. Exit
    status 1: it does not, and nothing changes. --force promotes all the same, e.g. to roll back,
    and the version is tagged promoted_by=hand.

    example:
      python -m training promote alpaca-vicuna7b 3
    """
    result = _promote(options)
    state = "is the champion" if result["champion"] else "is not promoted"
    state += ", by hand" if result["forced"] else ""
    line = f"{options.name} version {options.version} {state}: {result['verdict']}"
    print_result(result, output, lambda: print(line))
    return 0 if result["champion"] else 1


def _promote(options: PromoteOptions) -> dict[str, Any]:
    name = options.name
    with open_store(options.mlruns_dir) as store:
        chosen = store.version(name, options.version)
        result = dict(name=name, version=str(chosen.version), forced=False, difference_ci=None)
        if CHAMPION in chosen.aliases:
            return result | {"champion": True, "verdict": "it has been the champion before"}
        challenger = ModelBundle.load(store.folder(chosen.source))
        try:
            champion, where = store.champion(name), (options.data, options.data_dir)
            test = [] if champion is None else held_out_prompts(challenger.manifest, *where)
            verdict = judge(challenger, champion, test)
        except (BundleError, ConfigError, DataError) as error:
            if not options.force:
                raise
            verdict = Promotion(False, f"not compared: {error}")
        if verdict.promoted or options.force:
            by = "gate" if verdict.promoted else "hand"
            store.promote(name, str(chosen.version), {"verdict": verdict.reason, "promoted_by": by})
    return result | {
        "champion": verdict.promoted or options.force,
        "forced": options.force and not verdict.promoted,
        "verdict": verdict.reason,
        "difference_ci": verdict.difference_ci,
    }


@dataclass(frozen=True, slots=True)
class Promotion:
    """The verdict on a challenger, with its reason."""

    promoted: bool
    reason: str
    difference_ci: tuple[float, float] | None = None
    """95% paired bootstrap interval of the gain in tau_b; None without a comparison."""


def judge(challenger: ModelBundle, champion: ModelBundle | None, test: Dataset) -> Promotion:
    """Compare both on the challenger's test prompts, which the champion must not have seen.

    A draw keeps the champion: replacing it costs a reload and gains nothing. Without a champion,
    the tau_b of the challenger's manifest on the same prompts must be above chance.
    """
    figures = challenger.manifest.metrics
    if champion is None:
        low, high = figures.get("tau_b_ci") or (None, None)
        if low is None:
            return Promotion(False, "its tau_b is not known or undefined; promote by hand")
        interval = f"tau_b {figures['tau_b']:+.4f}, 95% interval {low:+.4f} to {high:+.4f}"
        if low > 0:
            return Promotion(True, f"the first champion: {interval}")
        return Promotion(False, f"not proven better than chance: {interval}; train on more prompts")
    mine, theirs = (_training_rule(bundle) for bundle in (challenger, champion))
    if mine != theirs:
        return Promotion(
            False,
            f"not comparable: the champion was split by {theirs}, this one by {mine}; it "
            "may have been trained on these test prompts; promote by hand",
        )
    lengths = observed(test)
    scores, others = (score_prompts(bundle, texts(test)) for bundle in (challenger, champion))
    gain = tau_b(scores, lengths) - tau_b(others, lengths)
    if math.isnan(gain):
        return Promotion(False, "not comparable: one tau_b is undefined; promote by hand")
    low, high = tau_b_difference_ci(scores, others, lengths)
    verb = "beats" if low > 0 else "does not beat"
    reason = f"{verb} the champion: tau_b {gain:+.4f}, 95% interval {low:+.4f} to {high:+.4f}"
    return Promotion(low > 0, reason, (low, high))


def _training_rule(bundle: ModelBundle) -> dict[str, object]:
    split = bundle.manifest.training["split"]
    rule = {key: split[key] for key in ("seed", "val_fraction", "test_fraction")}
    return rule | {"label": bundle.manifest.label}
