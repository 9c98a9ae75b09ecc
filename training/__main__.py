"""`python -m training COMMAND`: rankers of prompts by response length."""

import logging
import os
import sys
from typing import Final

from lengthwise.command_line.program import Program


def _prepare() -> None:
    # Idle OpenMP threads that spin would starve the others on a shared machine. A short spin stays:
    # a training step is hundreds of short operations, and takes a third longer if threads sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for name in ("training", "lengthwise.tables"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    # Lightning sets its parent logger's level whenever it is imported.
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)


PROGRAM: Final = Program(
    module="training",
    title="Rankers",
    about="Train rankers that order prompts by the length of a model's response.",
    commands={
        "fit": ("fit:main", "train a ranker by a recipe; ends in a bundle and an MLflow run"),
        "predict": ("predict:main", "score prompts by a checkpoint, with Lightning's Trainer"),
        "test": ("predict:main_of_test", "tau_b of a checkpoint, with Lightning's Trainer"),
        "evaluate": ("evaluate:main", "measure a bundle on any table or log, also for drift"),
        "recalibrate": ("recalibrate:main", "fit a bundle's lengths to another model's responses"),
        "calibrate": ("calibrate:main", "fit a model's prefill cost to measured latencies"),
        "cross-model": ("cross_model:main", "train on one model, test on the others: a matrix"),
        "promote": ("promote:main", "make a version the champion, if it beats the present one"),
        "export": ("export:main", "write the bundle of a run into a folder"),
        "fetch": ("data.fetch:main", "build the table of a data card from its public source"),
        "collect": ("data.collect:main", "measure response lengths at an OpenAI-style endpoint"),
        "delta": ("data.delta:main", "find the delta of ranking pairs from ten answers per prompt"),
    },
    extra="train",
    extras={"collect": "collect", "fetch": "collect"},
    prepare=_prepare,
)
main: Final = PROGRAM.run

if __name__ == "__main__":
    sys.exit(main())
