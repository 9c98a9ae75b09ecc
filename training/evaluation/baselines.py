"""Baselines: cheap predictors of the length from the prompt's text alone.

Each is fitted on the ranker's own training prompts; one value per prompt, higher = longer.
"""

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.config import Repeats
from training.data.labels import targets, texts
from training.data.records import Dataset, column

_WORD: Final = r"(?u)\b\w+\b"


def group_means(train: Dataset, repeats: Repeats, items: Dataset) -> NDArray[np.float64]:
    """Return the mean log length of each prompt's group, a predictor from the task alone.

    A group without training prompts gets the mean of all.
    """
    logs, names = np.log(targets(train, repeats)), np.array(column(train, "group").to_pylist())
    means = {name: logs[names == name].mean() for name in set(names)}
    return np.array([means.get(group, logs.mean()) for group in items["group"]])


def tfidf_ridge(train: Dataset, repeats: Repeats, items: Dataset) -> NDArray[np.float64]:
    """Return log lengths predicted by ridge regression on TF-IDF of words and word pairs.

    If at most half of the words of `items` occur in `train`, as in scripts without spaces, the
    features also include runs of one to three characters.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline, make_union

    features: Any = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=_WORD)
    known = {word for text in texts(train) for word in re.findall(_WORD, text.lower())}
    tested = [word for text in texts(items) for word in re.findall(_WORD, text.lower())]
    if 2 * sum(word in known for word in tested) <= len(tested):
        runs = TfidfVectorizer(ngram_range=(1, 3), sublinear_tf=True, analyzer="char")
        features = make_union(features, runs) if known else runs
    model: Any = make_pipeline(features, Ridge(alpha=1.0)).fit(
        texts(train), np.log(targets(train, repeats))
    )
    return np.asarray(model.predict(texts(items)), np.float64)
