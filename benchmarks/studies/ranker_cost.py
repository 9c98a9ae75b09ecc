"""Order against cost of trained rankers.

    python -m benchmarks ranker-cost RUN...

A run is a folder of `python -m training fit`; all have one data set and split. tau_b is of the
validation split, which chooses. CPU time is that of one prompt at a time, tokenizing included, on
one thread; the rankers take turns. The first row is TF-IDF + ridge on the same training prompts.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from lengthwise.agreement import tau_b
from lengthwise.bundle import ModelBundle
from scoring_service.ranker.model import RankerModel
from training.data.labels import observed, targets, texts
from training.data.provenance import load_training_splits

ROUNDS, PROMPTS = 9, 100
Ranker = Callable[[Sequence[str]], Any]


def measure(folders: list[Path]) -> pd.DataFrame:
    """Return validation tau_b, CPU ms per prompt, and MB of the bundle of each run."""
    bundles = [ModelBundle.load(folder / "bundle") for folder in folders]
    splits = load_training_splits(bundles[0].manifest, None, None).splits
    val = texts(splits.val)
    ridge = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), Ridge())
    logs = np.log(targets(splits.train, "geometric_mean"))
    rankers: dict[str, Ranker] = {"TF-IDF + ridge": ridge.fit(texts(splits.train), logs).predict}
    for folder, bundle in zip(folders, bundles, strict=True):
        rankers[folder.name] = RankerModel.load(bundle).score_texts
    sample, cpu_ms = texts(splits.train)[:PROMPTS], np.empty((ROUNDS, len(rankers)))
    for turn in range(ROUNDS):
        for number, score in enumerate(rankers.values()):
            start_s = time.thread_time()
            for prompt in sample:
                score([prompt])
            cpu_ms[turn, number] = (time.thread_time() - start_s) / len(sample) * 1e3
    sizes = [sum(f.stat().st_size for f in b.path.iterdir()) / 1e6 for b in bundles]
    return pd.DataFrame(
        {
            "ranker": list(rankers),
            "tau_b": [tau_b(score(val), observed(splits.val)) for score in rankers.values()],
            "CPU ms": np.median(cpu_ms, axis=0),
            "MB": [np.nan, *sizes],
        }
    )


if __name__ == "__main__":
    print(measure([Path(word) for word in sys.argv[1:]]).round(3).to_string(index=False))
