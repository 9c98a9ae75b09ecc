"""`python -m training fit`: recipe -> trained ranker, model bundle, MLflow run."""

from __future__ import annotations

import json
import logging
import os
import shutil
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Final

import yaml

from lengthwise.agreement import figure_text
from lengthwise.bundle import MANIFEST, read_manifest
from lengthwise.command_line.options import POSITIONAL, common_options
from lengthwise.command_line.program import run_command
from lengthwise.errors import ConfigError, raised_as
from lengthwise.settings import Count, settings
from training.commands.options import (
    CONFIG,
    OutputOptions,
    StoreOptions,
    print_result,
    print_rows,
    read_config,
)
from training.config import TrainConfig, config_from
from training.data.labelled_splits import LabelledSplits, load_splits, unlabelled_prompts
from training.data.labels import observed, texts
from training.recipes import RECIPES, recipe, student_of
from training.release.registry import find_bundle, open_store, tags_of

# In place of TYPE_CHECKING, whose block jsonargparse runs: --help would take seconds.
MYPY: Final = False
if MYPY:
    from training.ranker.data_module import Teacher
    from training.ranker.training_loop import Trained
    from training.release.tracking import Tracker

DESCRIPTION: Final = """Train a length ranker by a recipe and export it.

Writes OUT/bundle (the model bundle), OUT/ranker.html (its quality and its worst errors),
OUT/test.parquet (the held-out prompts), OUT/config.yaml (all settings) and an MLflow run. The
recipe demo also distils a small ranker from its own, into OUT/small (--student false: it does not).
Ctrl-C leaves a run that --resume continues. Each length of --data.heads gets a bundle of its own,
OUT/bundle-LENGTH, from the same encoder. Under torchrun every process takes its part of each batch,
on a GPU of its own if there are GPUs. --batch-size counts the prompts of all processes, and all of
them are compared. Any setting of the recipe can be overridden, e.g. --epochs 3 --loss.delta .25,
and --trainer.NAME VALUE is any setting of Lightning's Trainer; `python -m training fit RECIPE
--help-all` lists both with their values. `fit --config OUT/config.yaml` repeats a run.

recipes:
{recipes}

examples:
  python -m training fit demo --out mlruns/demo --data-dir DIR
  python -m training fit demo --data.dataset logs.jsonl --data.heads answer_tokens --out run
  python -m training fit demo --trainer.max_time 00:00:10:00 --trainer.profiler simple --out run
  python -m training fit --config run/config.yaml --out again
  torchrun --nproc-per-node 4 -m training fit best --out run        four GPUs, or CPU processes
"""

logger = logging.getLogger(__name__)


@settings
class FitOptions(StoreOptions):
    """A recipe, and the folders of its run."""

    recipe: str = field(metadata=POSITIONAL)
    """One of the recipes above."""
    out: Path
    """Folder for the results."""
    data_dir: str | None = None
    """Folder that holds the data sets."""
    teacher: tuple[str, ...] = ()
    """Bundles of a small ranker's teachers; default: run recipe best."""
    epochs: Count | None = None
    """Short for --trainer.max_epochs: passes over the training prompts."""
    resume: bool = False
    """Continue the interrupted run in OUT."""
    keep_checkpoints: bool = False
    """Leave Lightning's best and last checkpoint in OUT/checkpoints."""

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    @property
    def state(self) -> Path:
        return self.checkpoints / "run.json"


def main(arguments: Sequence[str]) -> int:
    """Run the command with the defaults of the recipe: the first argument, or that of a file."""
    lines = (f"  {name:8} {about}" for name, (about, _) in RECIPES.items())
    name = arguments[0] if arguments and not arguments[0].startswith("-") else _named_in(arguments)
    defaults = asdict(recipe(name) if name else TrainConfig())
    with_trainer = any(word.startswith(("--trainer", "--config", "--help-")) for word in arguments)
    return run_command(
        "python -m training fit",
        run,
        arguments,
        defaults=defaults if name else {"trainer": defaults["trainer"]},
        description=DESCRIPTION.format(recipes="\n".join(lines)),
        # Lightning takes seconds to import.
        extend=partial(_add_trainer, defaults["trainer"]) if with_trainer else None,
    )


def _named_in(arguments: Sequence[str]) -> str | None:
    """Return the recipe of the file of `--config`."""
    parser = ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--config")
    path = parser.parse_known_args(arguments)[0].config
    return None if path is None else read_config(path).get("recipe")


def _add_trainer(defaults: Mapping[str, Any], parser: Any) -> None:
    from training.ranker.trainer import add_trainer

    parser.add_argument("--config", action="config", help="The config.yaml of a run, to repeat it.")
    add_trainer(parser)
    parser.set_defaults({f"trainer.{name}": value for name, value in defaults.items()})


@common_options(
    *("recipe", "out", "data_dir", "student", "resume", "epochs", "json", "data.dataset"),
    *("data.length_column", "encoder.backbone"),
)
def run(options: FitOptions, config: TrainConfig, output: OutputOptions) -> None:
    if options.epochs is not None:
        config = config.with_trainer(max_epochs=options.epochs)
        options = replace(options, epochs=None)
    try:
        result = fit(config, options)
    except KeyboardInterrupt:
        if options.state.is_file():
            logger.info("interrupted; the same command with --resume continues this run")
        raise

    if not result:
        return
    small = result.get("small", {})

    def show() -> None:
        for figures in (result, *result.get("heads", {}).values()):
            _print_result(figures)
        if small:
            print(
                "\nsmall ranker, which learnt the scores of the one above (--student false: none)"
            )
            _print_result(small)

    is_better = (small.get("tau_b") or -1) > (result["tau_b"] or -1)
    serve = "python -m scoring_service serve --bundle "
    print_result(result, output, show, serve + quote((small if is_better else result)["bundle"]))


def fit(config: TrainConfig, options: FitOptions) -> dict[str, Any]:
    """Run one experiment from data to registry; returns the figures that `--json` prints.

    Under torchrun every process trains; only the first writes and returns anything.
    """
    given, config = config, _from_bundle(config, options)
    run_id = _interrupted_run(config, options) if options.resume else None
    labelled = load_splits(config, options.data_dir)
    parts = (labelled, *labelled.heads)
    labels, folder = [part.splits for part in parts], options.checkpoints
    teacher = _find_teacher(config, options, labelled)

    # torch and MLflow take seconds to import, and bad input is reported before.
    from training.ranker.trainer import make_trainer, trainer_arguments
    from training.ranker.training_loop import load_encoder, train

    make_trainer(trainer_arguments(config), [], None)  # Wrong settings leave nothing behind.
    encoder = load_encoder(config, len(labels), teacher)
    fitted = partial(train, config, encoder, labels, folder, resume=options.resume, teacher=teacher)
    if int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK", "0")) > 0:
        fitted(False)
        return {}
    from training.release.publish import write_test_prompts
    from training.release.tracking import Tracker

    card = labelled.data.card
    tracker = Tracker(options.mlruns_dir, run_name=config.name, run_id=run_id)
    with tracker:
        if run_id is None:
            tracker.log_params(asdict(config) | {"dataset": card.id, "card_sha256": card.digest})
            tracker.log_data(labelled)
            shutil.rmtree(folder, ignore_errors=True)  # the checkpoints of an older run
            folder.mkdir(parents=True)
            state = {"config": asdict(config), "mlflow_run_id": tracker.run_id}
            options.state.write_text(json.dumps(state))
            _write_config(given, options)
        trained = fitted(tracker.lightning_logger())
        tracker.log_file(options.out / CONFIG)
        write_test_prompts(options.out / "test.parquet", labelled)
        first, *others = (
            _publish(part, trained.only(number), options.out, tracker, is_further=number > 0)
            for number, part in enumerate(parts)
        )
        options.state.unlink()  # The run is whole: nothing to resume.
        if not options.keep_checkpoints:
            shutil.rmtree(folder)
    heads = dict(zip(config.data.orders[1:], others, strict=True))
    result = first | ({"heads": heads} if heads else {})
    if config.student and _num_processes() == 1:
        folder, teacher = options.out / "small", first["bundle"]
        theirs = replace(options, out=folder, teacher=(teacher,), resume=False)
        logger.info("a small ranker follows, in %s; --student false leaves it out", folder)
        result["small"] = fit(student_of(config), theirs)
    return result


def _from_bundle(config: TrainConfig, options: FitOptions) -> TrainConfig:
    """Return the settings; a bundle as backbone becomes its run's encoder, at its rate."""
    place = Path(config.encoder.backbone)
    if not (place / MANIFEST).is_file():
        return config
    manifest = read_manifest(place)
    theirs = config_from(manifest.training)
    from training.ranker.encoder import find_backbone
    from training.release.publish import CHECKPOINT

    with open_store(options.mlruns_dir) as store:
        folder = store.logged_folder(str(manifest.mlflow_run_id), CHECKPOINT)
    rate = config.optim.encoder_lr
    if rate is None:
        rate = theirs.optim.encoder_lr or find_backbone(theirs.encoder.backbone).lr
    return replace(
        config,
        encoder=replace(config.encoder, backbone=str(folder), pooling=theirs.encoder.pooling),
        optim=replace(config.optim, encoder_lr=rate),
    )


def _find_teacher(
    config: TrainConfig, options: FitOptions, labelled: LabelledSplits
) -> Teacher | None:
    """Return the teacher of a student with its scores, which are kept in OUT/teacher.parquet."""
    if config.loss.teacher_weight == 0:
        if options.teacher:
            raise ConfigError(
                "loss.teacher_weight is 0, so --teacher has no effect; use recipe small"
            )
        return None
    if _num_processes() > 1:
        raise ConfigError("a student is trained by one process; run it without torchrun")
    from training.export.teacher import find_teachers, teach

    splits, out = labelled.splits, options.out / "teacher"
    unlabelled = unlabelled_prompts(config, splits, options.data_dir)
    places = options.teacher or (str(out / "bundle"),)
    if not options.teacher and not (options.resume and (out / "bundle").is_dir()):
        theirs = replace(options, out=out)
        theirs = replace(theirs, resume=options.resume and theirs.state.is_file())
        data = replace(config.data, unlabelled=())
        fit(replace(recipe("best"), data=data, split=config.split, seed=config.seed), theirs)
    found = [find_teachers(find_bundle(each, options.mlruns_dir), config) for each in places]
    kept, with_states = options.out / "teacher.parquet", config.loss.token_weight > 0
    return teach(found, texts(splits.train), unlabelled, kept, with_states=with_states)


def _write_config(config: TrainConfig, options: FitOptions) -> None:
    """Write the file that `fit --config` repeats the run from."""
    content = asdict(replace(options, resume=False)) | asdict(config)
    del content["epochs"]  # It is trainer.max_epochs.
    plain = json.loads(json.dumps(content, default=str))
    (options.out / CONFIG).write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _num_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _publish(
    labelled: LabelledSplits, trained: Trained, out: Path, tracker: Tracker, *, is_further: bool
) -> dict[str, Any]:
    """Write and log the bundle of a length, and register it: it may become champion."""
    from lengthwise.report_page import write_page
    from training.commands.promote import judge
    from training.evaluation.report import ranker_page
    from training.release import publish

    label, is_set = labelled.config.data.label, labelled.config.data.head_per_dataset
    suffix = f"-{labelled.data.card.id if is_set else label}" if is_further else ""
    name = labelled.data.card.id + ("-small" if trained.teacher else "")
    name, folder = name if is_set else name + suffix, out / (publish.BUNDLE + suffix)
    bundle, scores = publish.write_bundle(labelled, trained, folder, tracker.run_id, name)
    manifest, splits, report = bundle.manifest, labelled.splits, out / f"ranker{suffix}.html"
    tested = texts(splits.test), scores, observed(splits.test)
    write_page(report, ranker_page(manifest, *tested))
    publish.log_results(tracker, bundle, trained, report, splits, scores)
    verdict = judge(bundle, tracker.champion(name), splits.test)
    about = f"Length ranker: {publish.summary_of(bundle, splits)}"
    tags = tags_of(manifest) | {"verdict": verdict.reason, "label": label}
    version = tracker.register(name, folder.name, tags, about)
    if verdict.promoted:
        tracker.promote(name, version)
    return {
        "dataset": manifest.dataset["id"],
        "label": label,
        "train_prompts": manifest.dataset["train_prompts"],
        "test_prompts": manifest.dataset["test_prompts"],
        **manifest.metrics,
        "mlflow_run_id": tracker.run_id,
        "bundle": str(bundle.path),
        "registry_version": version,
        "champion": verdict.promoted,
        "verdict": verdict.reason,
    }


def _interrupted_run(config: TrainConfig, options: FitOptions) -> str:
    text = f"{options.out} holds no interrupted run; start one without --resume"
    with raised_as(ConfigError, text, OSError, ValueError):
        state = json.loads(options.state.read_text())
    mine = json.loads(json.dumps(asdict(config)))
    if changed := [key for key in mine if mine[key] != state["config"].get(key)]:
        raise ConfigError(
            f"the run in {options.out} was started with another {', '.join(changed)}; "
            "resume it with its own settings, or start anew without --resume"
        )
    return str(state["mlflow_run_id"])


def _print_result(result: dict[str, Any]) -> None:
    def tau_b(name: str, note: str) -> str | None:
        return f"{figure_text(result[name])}  ({note})" if name in result else None

    low, high = map(figure_text, result["tau_b_ci"])
    interval = "no interval" if low == "undefined" else f"95% interval {low} to {high}"
    drop, val_drop = (
        figure_text(result.get(f"int8_{part}tau_b_drop"), "+.4f") for part in ("", "val_")
    )
    tells_no_loss = result["has_int8"] or "int8_val_tau_b_drop" not in result
    # The validation split decides whether INT8 is kept, the test split shows the loss.
    excess = f"it{'s loss of' if val_drop == 'undefined' else ' loses too much'} tau_b"
    loss = f"{drop} tau_b on test  (validation {val_drop}: kept)"
    rows = {
        "test prompts": f"{result['test_prompts']}, ranked by {result['label']}",
        "tau_b": tau_b("tau_b", interval),
        "tau_b, TF-IDF + ridge": tau_b("tau_b_tfidf_ridge", "same training prompts"),
        "tau_b, second answer": tau_b("second_answer", "the model's own"),
        "tau_b, ceiling": tau_b("ceiling", "the mean of the model's further answers"),
        "encoder passes": f"{result['encoder_passes']} in {result['train_cpu_s']:.1f} CPU-s",
        "INT8 loses": loss if result["has_int8"] else None,
        "INT8 left out": None if tells_no_loss else f"{excess}  (validation {val_drop})",
        "bundle": result["bundle"],
        "registry": f"version {result['registry_version']}: {result['verdict']}",
    }
    print_rows({name: text for name, text in rows.items() if text is not None}, 24)
