"""`python -m training promote`: make a registered version the champion."""

from dataclasses import dataclass, field
from typing import Any

from lengthwise.bundle import ModelBundle
from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import BundleError, ConfigError, DataError
from lengthwise.mlflow_store import CHAMPION
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.data.provenance import held_out_prompts
from training.release.champion import Promotion, judge
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
        result = {"name": name, "version": str(chosen.version), "forced": False}
        result |= {"banner": chosen.tags.get("warning"), "difference_ci": None}
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
