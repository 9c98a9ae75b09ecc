"""`python -m training list`, `promote` and `export`: what was trained, and which of it serves."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scoring_service.bundle import MANIFEST, Manifest, ModelBundle, read_manifest
from scoring_service.errors import BundleError, ConfigError, DataError
from training.command_line import configure_logging, make_parser, without_nan
from training.config import config_from
from training.data.labels import LabelledPrompt, label_prompts, observed
from training.data.prepared import Prepared, prepare
from training.data.records import FieldMap, read_table, to_records
from training.data.splits import Splits
from training.release.champion import Verdict, judge

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from training.release.tracking import ModelVersion, Run, Store

logger = logging.getLogger(__name__)

LIST: Final = """List the runs and the registered versions of an MLflow store, the newest first.

`*` marks the champion: the version that a service serves which follows NAME@champion. tau_b is that
of each bundle's own test prompts; figures of different data sets are not comparable.

example:
  python -m training list --mlruns-dir mlruns
"""

PROMOTE: Final = """Make a registered version the champion, if it is provably better.

Both rank the version's own test prompts; the 95% paired bootstrap interval of the difference in
tau_b must lie above 0; where there is no champion yet, the interval of the version's own tau_b.
Exit status 1: it does not, and all stays as it is. --force promotes all the same, e.g. to roll
back, and the version is tagged promoted_by=hand.

example:
  python -m training promote alpaca-vicuna7b 3
"""

EXPORT: Final = """Write the bundle of a run into a folder, verified; of several lengths, the first.

--rebuild makes it again from the run's checkpoint, by the export of this version: no retraining. It
is measured on the run's own prompts, found again in its data set; no other will do, because INT8
takes its scales from training prompts.

examples:
  python -m training export --run 1e0fe0bcf2f9495ba1af7db95f5aa149 --out ranker
  python -m training export --run 1e0fe0bcf2f9495ba1af7db95f5aa149 --out ranker --rebuild
"""


def main_list(argv: Sequence[str]) -> int:
    """Entry point of `list`."""
    parser = make_parser("list", "[options]", LIST)
    add_store_arguments(parser)
    arguments = parser.parse_args(list(argv))
    configure_logging()
    found = list_store(open_store(arguments.mlruns_dir))
    if arguments.json:
        print(json.dumps(found, allow_nan=False))
    else:
        _print_list(found)
    return 0


def main_promote(argv: Sequence[str]) -> int:
    """Entry point of `promote`; 1 where the champion stays."""
    parser = make_parser("promote", "NAME VERSION [options]", PROMOTE)
    parser.add_argument("name", type=str, help="registered model")
    parser.add_argument("version", type=str, help="number of the version")
    parser.add_argument("--force", action="store_true", help="promote even if not proven better")
    parser.add_argument(
        "--data", type=str | None, help="the test.parquet that fit wrote; default: found again"
    )
    parser.add_argument("--data-dir", type=str | None, help="folder of the version's data set")
    add_store_arguments(parser)
    arguments = parser.parse_args(list(argv))
    configure_logging()
    result = promote(
        open_store(arguments.mlruns_dir),
        arguments.name,
        arguments.version,
        data=arguments.data,
        data_dir=arguments.data_dir,
        force=arguments.force,
    )
    if arguments.json:
        print(json.dumps(without_nan(result), allow_nan=False))
    else:
        state = "is the champion" if result["champion"] else "is not promoted"
        state += ", by hand" if result["forced"] else ""
        print(f"{arguments.name} version {arguments.version} {state}: {result['verdict']}")
    return 0 if result["champion"] else 1


def main_export(argv: Sequence[str]) -> int:
    """Entry point of `export`."""
    parser = make_parser("export", "--run RUN_ID --out DIR [options]", EXPORT)
    parser.add_argument("--run", type=str, required=True, help="MLflow run; `list` shows them")
    parser.add_argument("--out", type=str, required=True, help="folder of the bundle; replaced")
    parser.add_argument("--rebuild", action="store_true", help="export the run's checkpoint anew")
    parser.add_argument(
        "--dataset", type=str | None, help="with --rebuild: the run's table or card, if it moved"
    )
    parser.add_argument(
        "--data-dir", type=str | None, help="with --rebuild: folder that holds the run's data set"
    )
    add_store_arguments(parser)
    arguments = parser.parse_args(list(argv))
    configure_logging()
    store, run_id, out = open_store(arguments.mlruns_dir), arguments.run, Path(arguments.out)
    if arguments.rebuild:
        bundle = rebuild(store, run_id, out, arguments.dataset, arguments.data_dir)
    elif arguments.dataset or arguments.data_dir:
        raise ConfigError("--dataset and --data-dir are read by --rebuild only; add it")
    else:
        bundle = export(store, run_id, out)
    if arguments.json:
        result = _figures(bundle.manifest) | {"bundle": str(bundle.path)}
        print(json.dumps(result, allow_nan=False))
    else:
        print(f"{bundle.path}: {bundle.manifest.name} revision {bundle.manifest.revision}")
    return 0


def add_store_arguments(parser: ArgumentParser) -> None:
    """The options of every command that reads the store."""
    parser.add_argument(
        "--mlruns-dir", type=str, default="mlruns", help="folder of the MLflow store"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")


def open_store(mlruns_dir: str) -> Store:
    """The store in that folder. MLflow takes seconds to import, so it is imported here.

    Raises:
        ConfigError: there is none.
    """
    from training.release.tracking import Store

    return Store(mlruns_dir)


def find_bundle(reference: str, mlruns_dir: str) -> ModelBundle:
    """A bundle by its folder, or by NAME@champion or NAME/VERSION in the registry.

    Raises:
        BundleError: the folder is no bundle, or the bundle is damaged.
        ConfigError: the registry has no such version.
    """
    name, _, version = reference.removeprefix("models:/").replace("@", "/").rpartition("/")
    is_number = version.isascii() and version.isdigit()
    if Path(reference).exists() or not name or not (is_number or "@" in reference):
        return ModelBundle.load(reference)
    return ModelBundle.load(open_store(mlruns_dir).version(name, version).bundle)


def list_store(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Runs and versions with the figures of their bundles; None where there is no bundle."""
    return {
        "runs": [_describe_run(run) for run in store.runs()],
        "versions": [_describe_version(version) for version in store.versions()],
    }


def promote(
    store: Store,
    name: str,
    version: str,
    *,
    data: str | None = None,
    data_dir: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Let the version take the alias if it beats the champion, or if it is forced to.

    Raises:
        BundleError: the version's bundle is damaged, or the champion's is and `force` is False.
        ConfigError: no such version.
        DataError: the version's test prompts cannot be had again, and `force` is False.
    """
    chosen = store.version(name, version)
    result = {"name": name, "version": chosen.version, "forced": False, "difference_ci": None}
    if chosen.is_champion:
        return result | {"champion": True, "verdict": "it has been the champion before"}
    challenger = ModelBundle.load(chosen.bundle)
    try:
        verdict = _judge(store, chosen, challenger, data, data_dir)
    except (BundleError, ConfigError, DataError) as error:
        if not force:
            raise
        verdict = Verdict(False, f"not compared: {error}")
    if verdict.promoted or force:
        by = "gate" if verdict.promoted else "hand"
        store.promote(name, chosen.version, {"verdict": verdict.reason, "promoted_by": by})
    return result | {
        "champion": verdict.promoted or force,
        "forced": force and not verdict.promoted,
        "verdict": verdict.reason,
        "difference_ci": verdict.difference_ci,
    }


def export(store: Store, run_id: str, out: Path) -> ModelBundle:
    """Copy the bundle of a run to `out`, which is replaced where it is a bundle.

    Raises:
        BundleError: the run wrote no bundle, or it is damaged.
        ConfigError: no such run, or `out` holds something else.
    """
    bundle = ModelBundle.load(_logged_bundle(store, run_id))
    _require_replaceable(out)

    def fill(folder: Path) -> None:
        for name in bundle.manifest.files:
            shutil.copy2(bundle.path / name, folder / name)

    with _writable(out):
        return ModelBundle.write(out, bundle.manifest, fill)


def rebuild(
    store: Store, run_id: str, out: Path, dataset: str | None = None, data_dir: str | None = None
) -> ModelBundle:
    """Make the bundle of a run again at `out` from its checkpoint; nothing is trained.

    Args:
        dataset: card or table of the run; None is what it was trained on, by name.

    Raises:
        BundleError: the run did not finish, or logged too little; or the export fails its checks.
        ConfigError: no such run, one of another version, or `out` holds something else.
        DataError: the prompts of the run cannot be had again.
    """
    source = _logged_bundle(store, run_id)
    logged = read_manifest(source)
    _require_replaceable(out)
    prepared = _prepare_again(logged, dataset, data_dir)

    # torch takes seconds to import; bad input is told before.
    from training.release.publish import CHECKPOINT, restore, write_bundle

    trained = restore(logged, source.with_name(CHECKPOINT))
    with _writable(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        bundle, _ = write_bundle(prepared, trained, out, run_id, logged.name)
    if lost := sorted(set(logged.calibration) - set(bundle.manifest.calibration)):
        logger.warning("not calibrated any more for %s; run recalibrate", ", ".join(lost))
    taus = [show_tau_b(_figures(manifest)) for manifest in (bundle.manifest, logged)]
    logger.info("tau_b %s; as it was logged %s", *taus)
    return bundle


def _logged_bundle(store: Store, run_id: str) -> Path:
    source = store.run(run_id).bundle
    if not source.is_dir():
        raise BundleError(
            f"run {run_id} has no bundle: it did not finish; choose another run, "
            "`python -m training list` shows them"
        )
    return source


def _require_replaceable(out: Path) -> None:
    if out.exists() and not (out / MANIFEST).is_file() and (out.is_file() or any(out.iterdir())):
        raise ConfigError(f"{out} holds something that is not a bundle; choose another --out")


@contextmanager
def _writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error}); choose another --out") from error


def _prepare_again(manifest: Manifest, dataset: str | None, data_dir: str | None) -> Prepared:
    """The data that the bundle's run was trained on, proved by the parts that it falls into.

    Raises:
        DataError: it is gone, or it is other data.
        ConfigError: the bundle was trained by another version of this package.
    """
    config = config_from(manifest.training)
    if dataset is not None:
        config = replace(config, data=replace(config.data, dataset=dataset))
    advice = (
        "give the data of the run with --dataset (a card or a table) or --data-dir (the folder of "
        "its data set)"
    )
    try:
        prepared = prepare(config, data_dir)
    except DataError as error:
        raise DataError(f"no training prompts to export with ({error}); {advice}") from error
    found, parts = prepared.describe(), ("train_prompts", "val_prompts", "test_digest")
    if differ := [part for part in parts if found[part] != manifest.dataset.get(part)]:
        raise DataError(
            f"these are not the prompts that the run was trained on: of {found['id']} from "
            f"{found['origin']}, {', '.join(differ)} differ; {advice}"
        )
    if found["card_sha256"] != manifest.dataset.get("card_sha256"):
        logger.warning(
            "card %s has changed since the run: its prompts are the same, lengths need not be",
            found["id"],
        )
    return prepared


def _judge(
    store: Store,
    chosen: ModelVersion,
    challenger: ModelBundle,
    data: str | None,
    data_dir: str | None,
) -> Verdict:
    champion = store.champion(chosen.name)
    test = [] if champion is None else _test_prompts(challenger.manifest, data, data_dir)
    return judge(challenger, champion, [item.prompt for item in test], observed(test))


def _test_prompts(
    manifest: Manifest, data: str | None, data_dir: str | None
) -> list[LabelledPrompt]:
    """The prompts that the bundle was tested on, proved to be those by their digest.

    Raises:
        DataError: they are others, or the data set cannot be found.
        ConfigError: the bundle was trained by another version of this package.
    """
    if data is None:
        test = prepare(config_from(manifest.training), data_dir).splits.test
    else:
        fields = FieldMap(output_tokens=(manifest.label,))
        records, _ = to_records(read_table(data), fields, path=data)
        test = label_prompts(records)[0]
    if Splits(train=[], val=[], test=test).test_digest != manifest.dataset.get("test_digest"):
        raise DataError(
            f"these are not the test prompts of run {manifest.mlflow_run_id}; give its "
            "test.parquet with --data, or the folder of its data set with --data-dir",
            path=data,
        )
    return test


def _describe_run(run: Run) -> dict[str, Any]:
    started = datetime.fromtimestamp(run.started_ms / 1000, UTC).isoformat(timespec="seconds")
    return {
        "run_id": run.run_id,
        "name": run.name,
        "status": run.status,
        "started": started,
        **_figures_at(run.bundle),
    }


def _describe_version(version: ModelVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": version.version,
        "champion": version.is_champion,
        "run_id": version.run_id,
        "promoted_by": version.tags.get("promoted_by"),
        "verdict": version.tags.get("verdict"),
        **_figures_at(version.bundle),
    }


def _figures_at(folder: Path) -> dict[str, Any]:
    try:
        return _figures(read_manifest(folder))
    except BundleError:
        return {"dataset": None, "revision": None, "tau_b": None, "tau_b_ci": None}


def _figures(manifest: Manifest) -> dict[str, Any]:
    return {
        "dataset": manifest.dataset.get("id"),
        "revision": manifest.revision,
        "tau_b": manifest.metrics.get("tau_b"),
        "tau_b_ci": manifest.metrics.get("tau_b_ci"),
    }


def _print_list(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
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


def show_tau_b(figures: Mapping[str, Any]) -> str:
    """`.598 (.582 to .615)`; a dash where it is unknown or undefined."""
    value, interval = figures["tau_b"], figures["tau_b_ci"]
    if value is None or math.isnan(value):
        return "-"
    low, high = interval or (None, None)
    return f"{value:.3f}" + ("" if low is None else f" ({low:.3f} to {high:.3f})")
