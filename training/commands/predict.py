"""`python -m training predict` and `test`: a checkpoint -> scores of prompts, or their tau_b."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lengthwise.agreement import figure_text
from lengthwise.bundle import Manifest, read_manifest
from lengthwise.command_line.options import NESTED
from lengthwise.command_line.program import run_command
from lengthwise.errors import ConfigError
from lengthwise.tables.options import RecordOptions
from lengthwise.tables.reading import read_log
from training.commands.options import OutputOptions, StoreOptions, print_result, read_config
from training.config import TrainConfig, config_from
from training.data.labels import TableOptions, observed, read_prompts, texts
from training.release.registry import open_store


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(RecordOptions, StoreOptions):
    """A checkpoint, and the prompts for it."""

    config: Path | None = None
    """The config.yaml of a run."""
    run: str | None = None
    """MLflow run; `list` shows them."""
    ckpt_path: Path | None = None
    """Checkpoint of Lightning."""
    data: tuple[str, ...] = ()
    """Tables or logs; default: OUT/test.parquet of --config."""
    trainer: Mapping[str, Any] = field(default_factory=dict, metadata=NESTED)
    """Settings of Lightning's Trainer."""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.config, self.run, self.ckpt_path)) != 1:
            raise ConfigError("give one of --config, --run and --ckpt-path")
        if not self.data and self.config is None:
            raise ConfigError("data is missing; give --data FILE")


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """The table of scores."""

    out: Path = Path("predictions.parquet")
    """File to write."""


def main(arguments: Sequence[str]) -> int:
    """Run `predict`."""
    return _run("predict", run, arguments)


def main_of_test(arguments: Sequence[str]) -> int:
    """Run `test`."""
    return _run("test", run_test, arguments)


def _run(name: str, command: Any, arguments: Sequence[str]) -> int:
    def extend(parser: Any) -> None:
        # Lightning takes seconds to import.
        from training.ranker.trainer import add_trainer

        add_trainer(parser)

    extend_now = (
        extend if any(word.startswith(("--trainer", "--help-")) for word in arguments) else None
    )
    return run_command(f"python -m training {name}", command, arguments, extend=extend_now)


def run(options: CheckpointOptions, scores: ScoreOptions, output: OutputOptions) -> None:
    """Score prompts by a trained checkpoint, with Lightning's Trainer.

    Writes a table with the columns prompt and score; of several lengths, the first. The checkpoint
    is that of a run by its config.yaml or its MLflow id, or a file that `fit --keep-checkpoints`
    left. --trainer.NAME VALUE is any setting of the Trainer, such as --trainer.accelerator gpu.

    examples:
      python -m training predict --config run/config.yaml --data prompts.jsonl
      python -m training predict --ckpt-path run/checkpoints/best.ckpt --data prompts.jsonl
    """
    import pandas as pd

    place, config = _find(options)
    frame = read_log(_data(options), options, needs=("prompt",)).frame
    prompts = frame["prompt"].tolist()
    from training.ranker import inference

    ranker = inference.load_ranker(place, config)
    found = inference.predict(_trainer(options), ranker, prompts)
    scores.out.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"prompt": prompts, "score": found}).to_parquet(scores.out)
    result = {"prompts": len(prompts), "checkpoint": str(place), "out": str(scores.out)}
    print_result(result, output, lambda: print(f"{scores.out}: scores of {len(prompts)} prompts"))


def run_test(options: CheckpointOptions, output: OutputOptions) -> None:
    """Measure a trained checkpoint in fp32 by lengths, with Lightning's Trainer.

    Without --data these are the test prompts of the run of --config. `evaluate` measures the
    bundle, as it is served, with intervals and baselines.

    examples:
      python -m training test --config run/config.yaml
      python -m training test --run 1e0fe0bcf2f9495ba1af7db95f5aa149 --data run/test.parquet
    """
    place, config = _find(options)
    from training.ranker import inference

    ranker = inference.load_ranker(place, config)
    table = {name: getattr(options, name) for name in RecordOptions.__dataclass_fields__}
    prompts = read_prompts(TableOptions(data=_data(options), **table), ranker.config.data.label)
    metrics = inference.test(_trainer(options), ranker, texts(prompts), observed(prompts))
    result = {**metrics, "prompts": len(prompts), "checkpoint": str(place)}
    text = f"test/tau_b {figure_text(metrics['test/tau_b'])} on {len(prompts)} prompts"
    print_result(result, output, lambda: print(text))


def _data(options: CheckpointOptions) -> tuple[str, ...]:
    return options.data or (str(_folder(options.config) / "test.parquet"),)


def _folder(config: Path | None) -> Path:
    content = read_config(config or "")
    if "out" not in content:
        raise ConfigError(f"{config} names no out, the folder of its run; use --run or --ckpt-path")
    return Path(content["out"])


def _find(options: CheckpointOptions) -> tuple[Path, TrainConfig]:
    """Return the checkpoint, a file or the folder that a run logged, and the run's settings."""
    if options.ckpt_path is not None:
        return options.ckpt_path, TrainConfig()
    run_id, mlruns_dir = options.run, options.mlruns_dir
    if options.config is not None:
        manifest = read_manifest(_folder(options.config) / "bundle")
        run_id, mlruns_dir = manifest.mlflow_run_id, read_config(options.config)["mlruns_dir"]
    with open_store(mlruns_dir) as store:
        logged: Manifest = read_manifest(store.logged_folder(str(run_id), "bundle"))
        return store.logged_folder(str(run_id), "checkpoint"), config_from(logged.training)


def _trainer(options: CheckpointOptions) -> Any:
    from training.ranker.trainer import make_trainer, trainer_arguments

    settings = {"precision": "32-true", "logger": False, **options.trainer}
    warnings.filterwarnings("ignore", module="lightning")
    arguments = trainer_arguments(replace(TrainConfig(), trainer=settings))
    return make_trainer(arguments, [], None)
