"""`python -m training list`: the runs and the registered versions of a store."""

from collections.abc import Mapping, Sequence
from typing import Any

from training.commands.options import OutputOptions, StoreOptions, print_result
from training.release.registry import list_store, open_store, show_tau_b


def main(store: StoreOptions, output: OutputOptions) -> None:
    """List the runs and the registered versions of an MLflow store, the newest first.

    `*` marks the champion, the version of a service that follows NAME@champion, `!` what rests on
    invented data. tau_b is that of each bundle's own test prompts; figures of different data sets
    do not compare.

    example:
      python -m training list --mlruns-dir mlruns
    """
    with open_store(store.mlruns_dir) as opened:
        found = list_store(opened)
    print_result(found, output, lambda: _print(found))


def _print(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    print(f"{'started, UTC':19}  {'run':32}  {'name':16}  {'status':8}  {'tau_b (95%)':21}  data")
    for run in found["runs"]:
        print(
            f"{run['started'][:19]}  {run['run_id']:32}  {run['name']:16}  {run['status']:8}  "
            f"{show_tau_b(run):21}  {run['dataset'] or 'no bundle'}"
        )
    print()
    print(f"  {'model':24}  {'version':>7}  {'tau_b (95%)':21}  {'revision':12}  why")
    for row in found["versions"]:
        by_hand = "by hand; " if row["promoted_by"] == "hand" else ""
        print(
            f"{'*' if row['champion'] else ' '} {row['name']:24}  {row['version']:>7}  "
            f"{show_tau_b(row):21}  {row['revision'] or 'no bundle':12}  "
            f"{by_hand}{row['verdict'] or ''}"
        )
