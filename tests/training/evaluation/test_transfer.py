"""The matrix of models: folds apart, models spread, the consensus of the others."""

from __future__ import annotations

import numpy as np
import pandas as pd

from training.evaluation.transfer import predict, spread


def test_predictions_are_made_by_folds_that_have_not_seen_the_prompt() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3))
    tokens = np.exp(features @ [1.0, -0.5, 0.2] + 4)
    good = predict(features, tokens)
    assert np.corrcoef(good, np.log(tokens))[0, 1] > 0.99
    noise = predict(rng.normal(size=(200, 150)), tokens)
    assert abs(np.corrcoef(noise, np.log(tokens))[0, 1]) < 0.3


def test_models_are_spread_over_their_names() -> None:
    names = [f"m{n:02}" for n in range(50)]
    few = list(spread(pd.DataFrame(np.ones((1, 50)), columns=names), 5))
    assert few[0] == "m00"
    assert few[-1] == "m49"
    assert len(few) == 5
