"""The INT8 graph of a BERT: the trained scores, in little, and the same bits in any company."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from torch import nn

from lengthwise.agreement import tau_b
from scoring_service.ranker.scorer import OnnxScorer
from tests.training.drawn import generate
from training.export import int8_bert
from training.ranker.data_module import tokenize
from training.ranker.encoder import PromptScorer, build_scorer, in_buckets

RECORDS, _ = generate(80, seed=3)
POOLINGS = ["mean", "cls", "pooler"]


@pytest.fixture
def scorer(tiny_bert: Path, request: pytest.FixtureRequest) -> PromptScorer:
    scorer, _ = build_scorer(str(tiny_bert), request.param, seed=0, max_prompt_tokens=32)
    for layer in scorer.backbone.modules():
        if isinstance(layer, nn.Linear):  # Fresh weights are so small that all prompts look alike.
            layer.weight.data *= 5
    return scorer.eval()


@pytest.fixture(scope="module")
def ids(tiny_bert: Path) -> list[list[int]]:
    _, tokenizer = build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=32)
    return tokenize(tokenizer, [record.prompt for record in RECORDS]).ids


def write(scorer: PromptScorer, ids: list[list[int]], folder: Path) -> OnnxScorer:
    onnx.save(
        int8_bert.build_int8(scorer, int8_bert.observe_ranges(scorer, ids)), folder / "model.onnx"
    )
    return OnnxScorer(folder / "model.onnx")


@pytest.mark.parametrize("scorer", POOLINGS, indirect=True)
def test_prompts_outside_the_calibrated_ranges_score_as_trained(scorer, ids, tmp_path):
    trained = in_buckets(scorer, ids[40:])
    model = write(scorer, ids[:40], tmp_path)
    served = np.array([model.score([one])[0] for one in ids[40:]])
    assert np.std(served - trained) < 0.15 * np.std(trained)
    assert tau_b(served, trained) > 0.9


@pytest.mark.parametrize("scorer", POOLINGS, indirect=True)
def test_no_neighbouring_weights_saturate_a_cpu_without_vnni(scorer, ids):
    graph = int8_bert.build_int8(scorer, int8_bert.observe_ranges(scorer, ids)).graph
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMulIntegerToFloat"]
    assert products
    for node in products:
        weights = np.abs(constants[node.input[1]].astype(int))  # (what flows in, what flows out)
        assert (255 * (weights[::2] + weights[1::2]) < 2**15).all()


@pytest.mark.parametrize("scorer", POOLINGS, indirect=True)
def test_a_score_does_not_depend_on_company_by_one_bit(scorer, ids, tmp_path):
    served = write(scorer, ids, tmp_path)
    alone = [served.score([one])[0] for one in ids]
    rng = np.random.default_rng(0)
    for size in (2, 3, 8):
        members = rng.choice(len(ids), size, replace=False)
        assert served.score([ids[n] for n in members]) == [alone[n] for n in members]
    cut = [one[: rng.integers(2, len(one) + 1)] for one in ids[:16]]
    assert served.score(cut) == [served.score([one])[0] for one in cut]
