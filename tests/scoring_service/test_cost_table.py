"""The cost table: what is measured is what is predicted, and nothing is assumed of batching."""

import pytest
from hypothesis import given, strategies as st

from scoring_service.cost_table import CostTable, is_batch_invariant

TABLE = CostTable((8, 16, 64), {1: (1.0, 2.0, 8.0), 4: (2.0, 4.0)})


@pytest.mark.parametrize(
    ("batch", "tokens", "seconds"),
    [
        *((1, 8, 1.0), (1, 16, 2.0), (1, 64, 8.0), (4, 8, 2.0), (4, 16, 4.0)),
        *((1, 12, 1.5), (2, 8, 4 / 3), (8, 16, 8.0), (1, 128, 16.0), (1, 4, 0.5)),
    ],
)
def test_predictions_are_linear_between_and_beyond_measurements(batch, tokens, seconds):
    assert TABLE.predict_s(batch, tokens) == pytest.approx(seconds)


@given(st.integers(1, 20), st.integers(1, 200))
def test_a_prediction_is_positive_and_grows_with_the_batch(batch, tokens):
    assert 0 < TABLE.predict_s(batch, tokens) <= TABLE.predict_s(batch + 1, tokens)


def test_the_table_knows_its_limits_and_one_length_is_enough():
    assert (TABLE.max_batch, TABLE.max_batched_tokens) == (4, 16)
    assert CostTable((8,), {1: (3.0,)}).predict_s(2, 50) == pytest.approx(6.0)


def depends_on_company(prompts):
    return [len(prompts[0]) + 0.001 * len(prompts) for _ in prompts]


def minds_its_own(prompts):
    return [float(sum(prompt)) for prompt in prompts]


def test_a_model_whose_scores_depend_on_company_is_never_batched():
    assert not is_batch_invariant(depends_on_company, 32, 100)
    assert CostTable.measure(depends_on_company, 32, 100).max_batch == 1


def test_company_may_move_a_last_bit_that_nothing_amplifies():
    def moved_a_little(prompts):
        return [len(prompt) + 1e-7 * len(prompts) for prompt in prompts]

    assert CostTable.measure(moved_a_little, 32, 100).max_batch == 8
    assert CostTable.measure(moved_a_little, 32, 100, tolerance=0.0).max_batch == 1


@pytest.mark.parametrize(("device", "most"), [("cpu", 8), ("gpu", 64)])
def test_a_model_that_minds_its_own_is_timed_in_batches(device, most):
    assert is_batch_invariant(minds_its_own, 32, 100)
    table = CostTable.measure(minds_its_own, 32, 100, device)
    assert table.max_batch == most
    assert table.lengths[-1] == 32
