"""Training on a GPU: what it learns, and that it learns what a CPU does.

`python -m pytest -m gpu` runs these; with GPU_TESTS_ON=cpu they try themselves out without a GPU.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lengthwise.agreement import tau_b
from lengthwise.bundle import ModelBundle
from lengthwise.tables.reading import read_table
from tests.training.drawn import generate
from training.__main__ import main
from training.export.bundle_scores import score_prompts

pytestmark = pytest.mark.gpu

RECORDS, ATTAINABLE = generate(400, seed=5)


@pytest.fixture
def device() -> str:
    """The accelerator to train on."""
    if "GPU_TESTS_ON" not in os.environ and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return os.environ.get("GPU_TESTS_ON", "gpu")


@pytest.fixture
def fit(
    make_card: Callable[..., Path],
    no_dropout: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[ModelBundle, dict[str, Any]]]:
    """Trains on a device, without dropout."""
    card = make_card(RECORDS)

    def run(device: str, *settings: str) -> tuple[ModelBundle, dict[str, Any]]:
        arguments = [
            "fit", "demo", "--out", str(tmp_path / device), "--mlruns-dir", str(tmp_path / "runs"),
            "--data.dataset", str(card), "--encoder.backbone", str(no_dropout), "--json",
            "--optim.encoder_lr", "3e-3", "--batch_size", "16", "--threads", "1",
            "--no-student", "--trainer.accelerator", device, *settings,
        ]  # fmt: skip
        assert main(arguments) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return ModelBundle.load(result["bundle"]), result

    return run


def test_what_was_trained_on_a_gpu_orders_unseen_prompts(device, fit, tmp_path):
    """Run in the default precision and micro-batches of the device."""
    bundle, result = fit(device, "--epochs", "6", "--optim.ema_decay", ".8")
    assert 0.4 < result["tau_b"] <= ATTAINABLE + 0.1
    held_out = read_table(tmp_path / device / "test.parquet")
    scores = score_prompts(bundle, held_out["prompt"].tolist())
    assert tau_b(scores, held_out["output_tokens"]) == pytest.approx(result["tau_b"], abs=1e-6)


@pytest.mark.filterwarnings("ignore:GPU available but not used")
def test_a_cpu_learns_the_same_from_the_same_seed(device, fit):
    """Up to what float32 rounds differently, which 24 steps do not blow up."""
    scores: list[NDArray[np.float64]] = []
    histories = []
    for where in (device, "cpu"):
        bundle, _ = fit(where, "--epochs", "1", "--trainer.precision", "32-true")
        scores.append(score_prompts(bundle, [record.prompt for record in RECORDS], "fp32"))
        histories.append([point["train/loss"] for point in bundle.manifest.history])
    on_gpu, on_cpu = scores
    assert np.ptp(on_cpu) > 0.1
    assert np.abs(on_gpu - on_cpu).max() < 0.01 * np.ptp(on_cpu)
    assert histories[0] == pytest.approx(histories[1], rel=1e-3)
