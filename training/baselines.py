"""What a ranker must beat to be worth its weights. Fitted on the same training prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def tfidf_ridge(
    train_prompts: Sequence[str], train_lengths: NDArray[np.float64], prompts: Sequence[str]
) -> NDArray[np.float64]:
    """Predicted log lengths: ridge regression on TF-IDF of words and word pairs. Shape (N,)."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    model = make_pipeline(words, Ridge(alpha=1.0))
    model.fit(list(train_prompts), np.log(train_lengths))
    return np.asarray(model.predict(list(prompts)), np.float64)
