"""The ONNX model as it is loaded and run."""

import pytest

from lengthwise.errors import BundleError, ScoringError
from scoring_service.ranker.scorer import OnnxScorer


@pytest.fixture
def scorer(tiny_bundle):
    return OnnxScorer(tiny_bundle.model_path("fp32"))


@pytest.mark.parametrize("content", [b"", b"not onnx"])
def test_what_is_no_model_is_a_bundle_error(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(BundleError, match="cannot be loaded"):
        OnnxScorer(path)


def test_a_runtime_that_fails_is_an_error(scorer):
    with pytest.raises(ScoringError, match="failed on 1 prompts"):
        scorer.score([[10**9]])
