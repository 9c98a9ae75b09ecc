"""Loading a model: what fits together is served, what does not is refused before it serves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import numpy_helper
from tokenizers import Tokenizer

from lengthwise.bundle import FP32, TOKENIZER, ModelBundle
from lengthwise.errors import BundleError
from scoring_service.ranker.model import (
    MAX_ABS_DIFF,
    MIN_TAU_B,
    RankerModel,
    check_golden,
    load_bundle,
    score_texts,
)


def changed(bundle: ModelBundle, folder: Path, change, **manifest) -> ModelBundle:
    """A copy of `bundle` in which `change(folder)` has altered the files."""

    def fill(work: Path) -> None:
        for name in bundle.manifest.files:
            (work / name).write_bytes((bundle.path / name).read_bytes())
        change(work)

    return ModelBundle.write(folder / "bundle", replace(bundle.manifest, **manifest), fill)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=32), min_size=1, max_size=8))
def test_a_score_does_not_depend_on_its_batch(tiny_model, prompts):
    alone = [tiny_model.scorer.score([prompt])[0] for prompt in prompts]
    assert tiny_model.scorer.score(prompts) == pytest.approx(alone, abs=1e-5)


def test_a_bundle_scores_a_list_of_texts_and_no_single_one(tiny_bundle, tiny_model):
    texts = ["yes", "long essay"]
    assert score_texts(tiny_bundle.path, texts) == tiny_model.score_texts(texts)
    with pytest.raises(TypeError, match="give a list of texts"):
        load_bundle(tiny_bundle.path).score_texts("long essay")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tiny_bundle, tmp_path):
    def grow(work: Path) -> None:
        tokenizer = Tokenizer.from_file(str(work / TOKENIZER))
        tokenizer.add_tokens(["unheardof"])
        tokenizer.save(str(work / TOKENIZER))

    with pytest.raises(BundleError, match="cannot score its tokenizer's"):
        RankerModel.load(changed(tiny_bundle, tmp_path, grow))


def rename_output(model):
    model.graph.node[-1].output[0] = model.graph.output[0].name = "logits"


def break_weights(model):
    nan = np.full(numpy_helper.to_array(model.graph.initializer[0]).shape, np.nan, np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(nan, "weights"))


@pytest.mark.parametrize(
    ("change", "message"), [(rename_output, "logits"), (break_weights, "weights are broken")]
)
def test_a_model_with_other_outputs_or_broken_weights_is_refused(
    tiny_bundle, tmp_path, change, message
):
    def rewrite(work: Path) -> None:
        model = onnx.load(work / FP32)
        change(model)
        onnx.save(model, work / FP32)

    with pytest.raises(BundleError, match=message):
        RankerModel.load(changed(tiny_bundle, tmp_path, rewrite))


@pytest.mark.filterwarnings("ignore:Specified provider 'CUDAExecutionProvider'")
def test_a_gpu_runtime_without_a_gpu_serves_as_on_a_cpu(tiny_bundle, monkeypatch, caplog):
    on_cpu = RankerModel.load(tiny_bundle)
    monkeypatch.setattr("scoring_service.ranker.model.has_gpu_runtime", lambda: True)
    model = RankerModel.load(tiny_bundle)
    assert (model.scorer.device, model.precision) == ("cpu", on_cpu.precision)
    assert "no GPU can be used" in caplog.text


GOLDEN = {str(n): float(n) for n in range(10)}


def check(scores, precision, golden=GOLDEN):
    check_golden(golden, scores, precision)


@pytest.mark.parametrize(
    ("golden", "limit"), [(GOLDEN, 9 * MAX_ABS_DIFF), ({"a": 0.0, "b": 0.1}, 0.001)]
)
def test_fp32_must_meet_scores_within_a_share_of_their_spread(golden, limit):
    check([score + 0.99 * limit for score in golden.values()], "fp32", golden)
    with pytest.raises(BundleError, match="score up to"):
        check([s - 1.01 * limit * (s == 0.0) for s in golden.values()], "fp32", golden)


def test_int8_must_keep_the_order():
    check([2.0 * n for n in range(10)], "int8")
    check([1, 0, 3, 2, 5, 4, 7, 6, 9, 8], "int8")  # 5 of 45 pairs are swapped: tau_b .78
    check([99.0], "fp32", {"a": 0.0})  # One prompt has no order.
    assert MIN_TAU_B == 0.6
    for scores, tau in (([5, 6, 7, 8, 9, 0, 1, 2, 3, 4], "-"), ([1.0] * 10, "0.0")):
        with pytest.raises(BundleError, match=f"another order.*tau_b {tau}"):
            check(scores, "int8")
