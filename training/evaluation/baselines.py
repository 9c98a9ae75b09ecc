"""What a ranker must beat to be worth its weights: cheap predictors from the prompt's text alone.

Fitted ones are fitted on the ranker's own training prompts; each returns one value per prompt,
higher = longer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray


def prompt_characters(prompts: Sequence[str]) -> NDArray[np.float64]:
    """Length of the prompt itself: what schedulers use that predict nothing."""
    return np.array([float(len(prompt)) for prompt in prompts])


def group_means(
    train_groups: Sequence[str], train_lengths: NDArray[np.float64], groups: Sequence[str]
) -> NDArray[np.float64]:
    """Mean log length of each prompt's group: what knowing the task alone is worth.

    A group that was not trained on gets the mean of all.
    """
    logs, names = np.log(train_lengths), np.asarray(train_groups)
    means = {name: logs[names == name].mean() for name in set(train_groups)}
    return np.array([means.get(name, logs.mean()) for name in groups])


def tfidf_ridge(
    train_prompts: Sequence[str], train_lengths: NDArray[np.float64], prompts: Sequence[str]
) -> NDArray[np.float64]:
    """Predicted log lengths: ridge regression on TF-IDF of words and word pairs."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    model = make_pipeline(words, Ridge(alpha=1.0))
    model.fit(list(train_prompts), np.log(train_lengths))
    return np.asarray(model.predict(list(prompts)), np.float64)


def lexical_boosting(
    train_prompts: Sequence[str], train_lengths: NDArray[np.float64], prompts: Sequence[str]
) -> NDArray[np.float64]:
    """Predicted log lengths: gradient-boosted trees on counts and cue words of the prompt."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(max_iter=150, random_state=0)
    model.fit(_lexical_features(train_prompts), np.log(train_lengths))
    return np.asarray(model.predict(_lexical_features(prompts)), np.float64)


_CUES: Final = (
    "write", "list", "explain", "describe", "generate", "create", "name", "summar", "classif",
    "translat", "essay", "story", "poem", "code", "function", "email", "letter", "sentence", "word",
    "example", "step", "detail", "short", "compare", "what", "why", "how", "which", "rewrite",
)  # fmt: skip


def _lexical_features(prompts: Sequence[str]) -> NDArray[np.float64]:
    """Counts and cue words, shape (N, F)."""
    rows = []
    for prompt in prompts:
        text = prompt.lower()
        numbers = [int(number) for number in re.findall(r"\b\d{1,6}\b", text)]
        counts = (len(text), len(text.split()), text.count("\n"), text.count("?"), text.count(","))
        rows.append(
            [*counts, len(numbers), max(numbers, default=0), *(cue in text for cue in _CUES)]
        )
    return np.array(rows, np.float64)
