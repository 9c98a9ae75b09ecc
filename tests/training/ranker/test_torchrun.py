"""Several processes under torchrun learn what one process learns."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from lengthwise.bundle import ModelBundle
from training.data.synthetic import generate


@pytest.mark.slow
def test_two_processes_learn_what_one_does(tiny_bert, make_card, tmp_path):
    card = make_card(generate(300, seed=5)[0])
    backbone = tmp_path / "no-dropout"
    shutil.copytree(tiny_bert, backbone)
    config = json.loads((backbone / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (backbone / "config.json").write_text(json.dumps(config))
    settings = [
        "--data.dataset", str(card), "--encoder.backbone", str(backbone), "--batch_size", "16",
        "--optim.encoder_lr", "1e-3", "--threads", "1", "--epochs", "1",
        "--trainer.precision", "32-true", "--split.test-prompts", "20", "--no-student",
        "--mlruns-dir", str(tmp_path / "mlruns"),
    ]  # fmt: skip
    histories = []
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    for number, launcher in enumerate(([sys.executable], torchrun)):
        out = tmp_path / f"run {number}"
        command = [*launcher, "-m", "training", "fit", "demo", "--out", str(out), *settings]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("tau_b  ") == 1
        histories.append(ModelBundle.load(out / "bundle").manifest.history)
    one, two = histories
    assert len(one) == len(two) == 4
    for first, second in zip(one, two, strict=True):
        assert second["train/loss"] == pytest.approx(first["train/loss"], abs=1e-3)
        assert second["encoder_passes"] == first["encoder_passes"]
        assert second["val/tau_b"] == pytest.approx(first["val/tau_b"], abs=0.02)
