"""Baselines: cheap predictors of the length from the prompt's text alone.

Each is fitted on the ranker's own training prompts, and returns one value per prompt, higher =
longer.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.config import Repeats
from training.data.labels import LabelledPrompt, targets, texts


def group_means(
    train: Sequence[LabelledPrompt], repeats: Repeats, items: Sequence[LabelledPrompt]
) -> NDArray[np.float64]:
    """Return the mean log length of each prompt's group, a predictor from the task alone.

    A group without training prompts gets the mean of all.
    """
    logs, names = np.log(targets(train, repeats)), np.array([item.group for item in train])
    means = {name: logs[names == name].mean() for name in set(names)}
    return np.array([means.get(item.group, logs.mean()) for item in items])


def tfidf_ridge(
    train: Sequence[LabelledPrompt], repeats: Repeats, items: Sequence[LabelledPrompt]
) -> NDArray[np.float64]:
    """Return log lengths predicted by ridge regression on TF-IDF of words and word pairs."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    model = make_pipeline(words, Ridge(alpha=1.0))
    model.fit(texts(train), np.log(targets(train, repeats)))
    return np.asarray(model.predict(texts(items)), np.float64)


def lexical_boosting(
    train: Sequence[LabelledPrompt], repeats: Repeats, items: Sequence[LabelledPrompt]
) -> NDArray[np.float64]:
    """Return log lengths predicted by boosted trees on counts and cue words of the prompt."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(max_iter=150, random_state=0)
    model.fit(_lexical_features(texts(train)), np.log(targets(train, repeats)))
    return np.asarray(model.predict(_lexical_features(texts(items))), np.float64)


_CUES: Final = (
    "write", "list", "explain", "describe", "generate", "create", "name", "summar", "classif",
    "translat", "essay", "story", "poem", "code", "function", "email", "letter", "sentence", "word",
    "example", "step", "detail", "short", "compare", "what", "why", "how", "which", "rewrite",
)  # fmt: skip


def _lexical_features(prompts: Sequence[str]) -> NDArray[np.float64]:
    rows = []
    for prompt in prompts:
        text = prompt.lower()
        numbers = [int(number) for number in re.findall(r"\b\d{1,6}\b", text)]
        counts = (len(text), len(text.split()), text.count("\n"), text.count("?"), text.count(","))
        rows.append(
            [*counts, len(numbers), max(numbers, default=0), *(cue in text for cue in _CUES)]
        )
    return np.array(rows, np.float64)
