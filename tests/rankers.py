"""Order against cost of trained rankers: `python tests/rankers.py RUN...`.

A run is a folder of `python -m training fit`; all have one data set and split. tau_b is of the
validation split, which chooses. CPU time is that of one prompt at a time, tokenizing included, on
one thread; the rankers take turns.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lengthwise.agreement import tau_b
from lengthwise.bundle import ModelBundle
from scoring_service.ranker.model import RankerModel
from training.data.labels import observed, texts
from training.data.provenance import load_training_splits

ROUNDS, PROMPTS = 9, 100


def measure(folders: list[Path]) -> pd.DataFrame:
    """Return validation tau_b, CPU ms per prompt, and MB of the bundle of each run."""
    bundles = [ModelBundle.load(folder / "bundle") for folder in folders]
    models = [RankerModel.load(bundle) for bundle in bundles]
    splits = load_training_splits(bundles[0].manifest, None, None).splits
    sample, cpu_ms = texts(splits.train[:PROMPTS]), np.empty((ROUNDS, len(models)))
    for turn in range(ROUNDS):
        for number, model in enumerate(models):
            start_s = time.thread_time()
            for prompt in sample:
                model.score_texts([prompt])
            cpu_ms[turn, number] = (time.thread_time() - start_s) / len(sample) * 1e3
    val = texts(splits.val)
    return pd.DataFrame(
        {
            "ranker": [folder.name for folder in folders],
            "tau_b": [tau_b(model.score_texts(val), observed(splits.val)) for model in models],
            "CPU ms": np.median(cpu_ms, axis=0),
            "MB": [sum(f.stat().st_size for f in b.path.iterdir()) / 1e6 for b in bundles],
        }
    )


if __name__ == "__main__":
    print(measure([Path(word) for word in sys.argv[1:]]).round(3).to_string(index=False))
