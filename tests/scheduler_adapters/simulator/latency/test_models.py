"""The affine model and the roofline by hand, and their form for the compiled loops."""

from dataclasses import replace

import pytest

from scheduler_adapters.simulator.latency.models import AFFINE, AffineLatency, LatencyModel

AFFINE_MODEL = AffineLatency(
    base_s=1.0, per_token_s=0.1, per_context_token_s=0.01, per_attention_pair_s=0.001
)
ROOFLINE_MODEL = replace(AFFINE_MODEL, weights_s=0.5)


def test_an_affine_step_is_a_sum_of_its_terms():
    # 2 decodes with 50 tokens of context; a chunk of 4 after 10: 4 * (10 + 2) pairs.
    assert AFFINE_MODEL.step_s(2, 50, [(10, 4)]) == pytest.approx(1 + 0.6 + 0.5 + 0.048)
    assert AFFINE_MODEL.step_s(1, 0, []) == pytest.approx(1.1)


@pytest.mark.parametrize(("num_decodes", "dense_s"), [(2, 0.5), (5, 0.5), (9, 0.9)])
def test_a_roofline_step_takes_the_longer_of_reads_and_products(num_decodes, dense_s):
    assert ROOFLINE_MODEL.step_s(num_decodes, 0, []) == pytest.approx(1 + dense_s)
    assert ROOFLINE_MODEL.step_s(num_decodes, 10, []) == pytest.approx(1 + dense_s + 0.1)


def test_compiled_models_are_their_kind_and_their_numbers():
    for model, weights_s in ((AFFINE_MODEL, 0.0), (ROOFLINE_MODEL, 0.5)):
        kind, numbers, *_ = model.compiled()
        assert (kind, numbers.tolist()) == (AFFINE, [1.0, weights_s, 0.1, 0.01, 0.001])


def test_a_model_of_ones_own_has_no_compiled_form():
    class Own(LatencyModel):
        def step_s(self, num_decodes, decode_context, prefills):
            return 1.0

    assert Own().compiled() is None
