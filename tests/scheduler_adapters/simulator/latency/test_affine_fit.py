"""The fit of an affine model to measured steps."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from lengthwise.errors import DataError
from scheduler_adapters.simulator.latency.affine_fit import fit_affine
from scheduler_adapters.simulator.latency.models import AffineLatency

COLUMNS = {
    "num_decodes": [1, 2, 3, 4],
    "decode_context": [1, 2, 3, 4],
    "prefill_tokens": [0, 0, 0, 0],
    "seconds": [1.0, 1.0, 1.0, 1.0],
}
COEFFICIENT = st.floats(1e-9, 1e-3)


@given(st.lists(COEFFICIENT, min_size=4, max_size=4), st.integers(0, 2**32 - 1))
def test_a_fit_to_affine_steps_gives_the_steps_back(coefficients, seed):
    names = ("base_s", "per_token_s", "per_context_token_s", "per_attention_pair_s")
    truth = AffineLatency(**dict(zip(names, coefficients, strict=True)))
    random = np.random.default_rng(seed)
    decodes, context = random.integers(0, 200, 60), random.integers(0, 100_000, 60)
    before, chunk = random.integers(0, 4000, 60), random.integers(1, 2000, 60)
    steps = list(zip(decodes, context, before, chunk, strict=True))
    table = pd.DataFrame(
        {
            "num_decodes": decodes,
            "decode_context": context,
            "prefill_tokens": chunk,
            "seconds": [truth.step_s(n, c, [(b, p)]) for n, c, b, p in steps],
            "attention_pairs": chunk * (before + chunk / 2),
        }
    )
    latency, error = fit_affine(table)
    assert error < 1e-6
    for n, c, b, p in steps:
        assert latency.step_s(n, c, [(b, p)]) == pytest.approx(truth.step_s(n, c, [(b, p)]))


def test_a_fit_never_gives_a_negative_coefficient():
    steps = [(n, 10 * n, 0, 6.0 - n) for n in range(1, 6)]
    latency, _ = fit_affine(pd.DataFrame(steps, columns=[*COLUMNS]))
    assert latency.per_token_s == latency.per_context_token_s == 0
    assert latency.base_s > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": [1.0, 1.0, 1.0, 0.0]}, "step 3"),
        ({"num_decodes": [1, -1, 1, 1]}, "step 1"),
        ({"decode_context": [1, 1, np.nan, 1]}, "step 2"),
        ({name: [1.0] for name in COLUMNS}, "measure more"),
    ],
)
def test_steps_that_cannot_be_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        fit_affine(pd.DataFrame(COLUMNS | changes))
