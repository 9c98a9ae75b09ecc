"""Several processes under torchrun learn what one process learns."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.drawn import generate
from training.__main__ import main
from training.commands import fit


def note(labelled: Any, trained: Any, out: Path, *_: Any, is_further: bool) -> dict[str, Any]:
    """Takes the place of the export; a second process that writes would fail."""
    with (out / "history.json").open("x") as file:
        json.dump(trained.history, file)
    return {}


@pytest.mark.slow
def test_two_processes_learn_what_one_does(no_dropout, make_card, tmp_path, monkeypatch):
    card = make_card(generate(300, seed=5)[0])
    settings = [
        "--data.dataset", str(card), "--encoder.backbone", str(no_dropout), "--batch_size", "16",
        "--optim.encoder_lr", "1e-3", "--threads", "1", "--epochs", "1",
        "--trainer.precision", "32-true", "--trainer.logger", "false", "--no-student",
        "--split.test-prompts", "20", "--mlruns-dir", str(tmp_path / "mlruns"),
        "--trainer.accelerator", "cpu",
    ]  # fmt: skip
    monkeypatch.setattr(fit, "_publish", note)
    assert main(["fit", "demo", "--out", str(tmp_path / "one"), *settings]) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--module", __name__]
    command = [*torchrun, "fit", "demo", "--out", str(tmp_path / "two"), *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / n / "history.json").read_text()) for n in ("one", "two"))
    assert len(one) == len(two) == 4
    for first, second in zip(one, two, strict=True):
        assert second["train/loss"] == pytest.approx(first["train/loss"], abs=1e-3)
        assert second["encoder_passes"] == first["encoder_passes"]
        assert second["val/tau_b"] == pytest.approx(first["val/tau_b"], abs=0.02)


if __name__ == "__main__":
    fit._publish = note
    sys.exit(main(sys.argv[1:]))
