"""Serving on a GPU, with onnxruntime-gpu: `python -m pytest -m gpu` runs these."""

import numpy as np
import pytest

from scoring_service.cost_table import INVARIANCE
from scoring_service.ranker.model import RankerModel
from scoring_service.ranker.scorer import OnnxScorer, has_gpu_runtime

pytestmark = pytest.mark.gpu


@pytest.fixture
def model(tiny_bundle):
    if not has_gpu_runtime():
        pytest.skip("onnxruntime-gpu is not installed")
    return RankerModel.load(tiny_bundle)


@pytest.fixture
def prompts():
    dice = np.random.default_rng(0)
    return [dice.integers(1, 40, size).tolist() for size in dice.integers(1, 32, 64)]


def test_a_bundle_is_served_on_the_gpu_in_fp32(model):
    assert (model.scorer.device, model.precision) == ("gpu", "fp32")


def test_a_gpu_gives_the_scores_of_the_cpu(model, tiny_bundle, prompts):
    on_cpu = OnnxScorer(tiny_bundle.model_path("fp32"))
    expected = [on_cpu.score([prompt])[0] for prompt in prompts]
    assert model.score(prompts) == pytest.approx(expected, abs=1e-4)


def test_a_score_on_a_gpu_does_not_depend_on_its_batch(model, prompts):
    alone = [model.score([prompt])[0] for prompt in prompts]
    assert model.score(prompts) == pytest.approx(alone, abs=INVARIANCE)


def test_a_gpu_batches(model):
    assert model.costs.max_batch > 1
    assert model.costs.predict_s(32, 16) < 32 * model.costs.predict_s(1, 16)
