"""`python -m training promote`: make a registered version the champion."""

from __future__ import annotations

from dataclasses import dataclass, field

from scoring_service.command_line import POSITIONAL
from training.commands.options import OutputOptions, StoreOptions, print_result
from training.release.champion import promote
from training.release.registry import open_store


@dataclass(frozen=True, kw_only=True)
class PromoteOptions:
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


def main(options: PromoteOptions, store: StoreOptions, output: OutputOptions) -> int:
    """Make a registered version the champion, if it is provably better.

    Both rank the version's own test prompts; the 95% paired bootstrap interval of the difference in
    tau_b must lie above 0. Without a champion, the interval of the version's own tau_b must. Exit
    status 1: it does not, and nothing changes. --force promotes all the same, e.g. to roll back,
    and the version is tagged promoted_by=hand.

    example:
      python -m training promote alpaca-vicuna7b 3
    """
    result = promote(
        open_store(store.mlruns_dir),
        options.name,
        options.version,
        data=options.data,
        data_dir=options.data_dir,
        force=options.force,
    )
    state = "is the champion" if result["champion"] else "is not promoted"
    state += ", by hand" if result["forced"] else ""
    line = f"{options.name} version {options.version} {state}: {result['verdict']}"
    print_result(result, output, lambda: print(line))
    return 0 if result["champion"] else 1
