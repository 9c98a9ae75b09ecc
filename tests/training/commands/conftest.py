"""A store with registered bundles of the tiny ranker, and commands run with --json."""

import hashlib
import json
import shutil
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from lengthwise.bundle import FP32, TOKENIZER, ModelBundle
from lengthwise.mlflow_store import CHAMPION
from tests.training.drawn import generate
from tests.training.prompts import PromptResponse
from training.__main__ import main
from training.config import DataConfig, TrainConfig
from training.data.labelled_splits import load_splits
from training.data.records import prompt_hash
from training.data.splits import Splits
from training.recipes import RECIPES, recipe
from training.release.tracking import Store

WORDS = ("yes", "no", "short", "poem", "long", "essay")
SPLIT = {"seed": 0, "val_fraction": 0.05, "test_fraction": 0.15}


def draw_prompts(count: int, *, drifted: bool = False, noise: float = 0.3) -> list[PromptResponse]:
    """Prompts of the tiny ranker's words, with lengths that follow from them, unless drifted."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(count):
        words = rng.integers(len(WORDS), size=4)
        mean = rng.normal(2.5, 1) if drifted else words.mean()
        length = int(np.exp(mean + rng.normal(0, noise)) * 20) + 1
        text = " ".join([*(WORDS[word] for word in words), str(number)])
        records.append(PromptResponse(prompt=text, output_tokens=length))
    return records


TEST = draw_prompts(120, noise=0.5)
DIGEST = hashlib.sha256("".join(prompt_hash(r.prompt) for r in TEST).encode()).hexdigest()


class Finished(NamedTuple):
    """A small run of `fit` with its checkpoints, a student and a store of its own."""

    out: Path
    bundle: ModelBundle
    result: dict[str, Any]
    """What --json printed."""


RECORDS, ATTAINABLE = generate(400, seed=5)


def small_recipe(**optim: Any) -> TrainConfig:
    """The recipe of students, for one that learns within a second."""
    small = recipe("small")
    encoder = replace(small.encoder, width=16)
    optim = {"encoder_lr": 1e-2, **optim}
    return replace(small, encoder=encoder, optim=replace(small.optim, **optim), batch_size=16)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, tiny_bert) -> Finished:
    root = tmp_path_factory.mktemp("finished")
    pd.DataFrame(RECORDS).to_json(root / "logs.jsonl", orient="records", lines=True)
    out, printed = root / "run", StringIO()
    settings = ["--out", str(out), "--mlruns-dir", str(root / "mlruns"), "--keep-checkpoints"]
    settings += ["--data.dataset", str(root / "logs.jsonl"), "--encoder.backbone", str(tiny_bert)]
    settings += ["--optim.encoder_lr", "3e-3", "--batch-size", "16", "--threads", "1", "--json"]
    settings += ["--optim.ema-decay", ".8", "--trainer.gradient_clip_val", "null", "--epochs", "4"]
    settings += ["--split.val-fraction", ".15", "--int8_max_tau_b_drop", "1"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setitem(RECIPES, "small", ("", small_recipe()))
        assert main(["fit", "demo", *settings]) == 0
    return Finished(out, ModelBundle.load(out / "bundle"), json.loads(printed.getvalue()))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "test.parquet"
    pd.DataFrame(TEST).to_parquet(path)
    return path


@pytest.fixture(scope="module")
def make_bundle(tiny_bundle, tmp_path_factory):
    """The tiny ranker with noise on its weights, as if trained and tested on TEST."""

    def make(noise: float, **changes: Any) -> ModelBundle:
        import onnx
        from onnx import numpy_helper

        model = onnx.load(tiny_bundle.model_path())
        weights = model.graph.initializer[0]
        values = numpy_helper.to_array(weights)
        values = values + np.random.default_rng(0).normal(0, noise, values.shape)
        weights.CopyFrom(numpy_helper.from_array(values.astype(np.float32), weights.name))

        def fill(folder: Path) -> None:
            onnx.save(model, folder / FP32)
            shutil.copy(tiny_bundle.tokenizer_path, folder / TOKENIZER)

        figures = {"tau_b": 0.5, "tau_b_ci": [0.4, 0.6]}
        dataset = {"id": "logs", "test_digest": DIGEST}
        manifest = replace(
            tiny_bundle.manifest, training={"split": SPLIT}, dataset=dataset, metrics=figures
        )
        folder = tmp_path_factory.mktemp("bundle") / "bundle"
        return ModelBundle.write(folder, replace(manifest, **changes), fill)

    return make


@pytest.fixture
def register(mlruns, make_bundle):
    """Log bundles, or those of a noise, as runs and versions of a model; returns the runs."""
    from training.release.registry import tags_of
    from training.release.tracking import Tracker

    def add(name: str, bundle: ModelBundle) -> str:
        tracker = Tracker(mlruns, run_name=name)
        tracker.log_folder(bundle.path, "bundle")
        tags = tags_of(bundle.manifest)
        tracker.set_tags(tags)
        tracker.register(name, "bundle", tags | {"verdict": "new"})
        tracker.client.set_terminated(tracker.run_id)
        return tracker.run_id

    def add_all(name: str, *bundles: ModelBundle | float, **changes: Any) -> list[str]:
        made = (b if isinstance(b, ModelBundle) else make_bundle(b, **changes) for b in bundles)
        return [add(name, bundle) for bundle in made]

    return add_all


@pytest.fixture
def learnt(make_card):
    """Writes a card of so many prompts; what a bundle notes that learnt them, and its splits."""

    def learn(count: int) -> tuple[dict[str, Any], Splits]:
        card = make_card(draw_prompts(count, noise=0.5))
        config = TrainConfig(data=DataConfig(dataset=str(card)))
        labelled = load_splits(config, None)
        return {"training": asdict(config), "dataset": labelled.describe()}, labelled.splits

    return learn


@pytest.fixture
def training(mlruns, capsys):
    """Runs a command with --json; its status and what it printed, or its error line."""

    def run(*arguments: object) -> tuple[int, Any]:
        status = main([*map(str, arguments), "--mlruns-dir", str(mlruns), "--json"])
        captured = capsys.readouterr()
        if status == 2:
            (line,) = captured.err.splitlines()
            assert captured.out == ""
            return status, line
        return status, json.loads(captured.out)

    run.store = Store(mlruns)
    return run


@pytest.fixture
def refused(training):
    """Runs a command that exits with 2; its error line."""

    def run(*arguments: object) -> str:
        status, line = training(*arguments)
        assert status == 2
        return str(line)

    return run


def champion(training: Any, name: str) -> str | None:
    """Version of the model's champion, if it has one."""
    models = training.store.client.search_registered_models()
    marked = {model.name: model.aliases.get(CHAMPION) for model in models}.get(name)
    return marked and str(marked)
