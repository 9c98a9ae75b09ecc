"""A trained scorer -> ONNX files of a bundle, checked against the scorer."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from lengthwise.agreement import tau_b
from lengthwise.bundle import FP32, INT8
from lengthwise.errors import BundleError
from scoring_service.ranker.scorer import OnnxScorer
from training.export import int8_bert
from training.export.bundle_scores import onnx_scores
from training.ranker.convolution import ConvolutionModel
from training.ranker.encoder import PromptScorer, in_buckets

OPSET: Final = 18
MAX_ABS_DIFF: Final = 1e-3
"""Between torch and ONNX Runtime; a correct export of a MiniLM differs by about 1e-6."""


def export_fp32(scorer: PromptScorer, path: Path) -> None:
    """Write the scorer as ONNX with batch and tokens dynamic."""
    example = {
        "input_ids": torch.ones(2, 8, dtype=torch.int64),
        "attention_mask": torch.ones(2, 8, dtype=torch.int64),
    }
    # The exporter takes sizes 0 and 1 as constants, so the example and the ranges start at 2.
    shape = {0: torch.export.Dim("batch", max=4096), 1: torch.export.Dim("tokens", min=2)}
    is_small = type(scorer.backbone) is ConvolutionModel
    embeddings = cast(Any, scorer.backbone).get_input_embeddings()
    if is_small:  # They are most of the file. The scorer keeps the rounded values.
        embeddings.half()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The exporter's own deprecations.
        torch.onnx.export(
            scorer.eval(),
            (),
            path,
            kwargs=example,
            input_names=list(example),
            output_names=["score"],
            dynamic_shapes=dict.fromkeys(example, shape),
            dynamo=True,
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
    embeddings.float()
    model = onnx.load(path)
    for node in model.graph.node:  # Stack traces: paths of this machine, and a revision by them.
        del node.metadata_props[:]
    onnx.save(model, path)


def describe(path: Path, facts: Mapping[str, str]) -> None:
    """Write facts about a ranker into the metadata of its ONNX file."""
    model = onnx.load(path)
    onnx.helper.set_model_props(model, dict(facts))
    onnx.save(model, path)


def export_int8(
    scorer: PromptScorer, fp32: Path, path: Path, sample_ids: Sequence[Sequence[int]]
) -> None:
    """Write the scorer in INT8, weights per channel.

    A BERT gets a graph of its own, with activations scaled by their range over `sample_ids`
    (tokenized prompts that nothing is measured on); other backbones are quantised dynamically.
    """
    if int8_bert.is_supported(scorer):
        ranges = int8_bert.observe_ranges(scorer.eval(), sample_ids)
        onnx.save(int8_bert.build_int8(scorer, ranges), path)
    else:
        _quantize_dynamic(fp32, path)


def _quantize_dynamic(fp32: Path, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(fp32)
    # The exporter's shape annotations contradict what the quantiser infers, and it needs none.
    del model.graph.value_info[:]
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # It advises a preprocessing that fails on this graph.
    try:
        # Seven bits, as sums of eight-bit products saturate on processors without VNNI.
        quantize_dynamic(
            model, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
        )
    finally:
        root.setLevel(level)


def measure_parity(
    scorer: PromptScorer, path: Path, ids: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Return the largest difference and tau_b of torch's and ONNX Runtime's scores of prompts."""
    trained = in_buckets(scorer, ids)
    exported = onnx_scores(OnnxScorer(path), ids)
    difference = float(np.abs(trained - exported).max())
    if difference > MAX_ABS_DIFF * max(1.0, float(np.ptp(trained))):
        raise BundleError(
            f"the exported model differs by {difference:.2g} from the trained one; "
            "ONNX export does not support this backbone, choose another"
        )
    return {"onnx_max_abs_diff": difference, "onnx_order_tau_b": tau_b(trained, exported)}


def write_models(
    scorer: PromptScorer,
    folder: Path,
    *,
    sample_ids: Sequence[Sequence[int]],
    val_ids: Sequence[Sequence[int]],
    val_lengths: NDArray[np.float64],
    max_tau_b_drop: float,
) -> dict[str, float]:
    """Write both precisions; INT8 is removed again if it loses too much on validation prompts.

    `sample_ids` are tokenized training prompts that give INT8 its scales. Returns the parity of
    FP32 and int8_val_tau_b_drop, the tau_b that INT8 loses (negative: gains). A convolution has no
    INT8: its products are too small to gain from it.
    """
    export_fp32(scorer, folder / FP32)
    parity = measure_parity(scorer, folder / FP32, val_ids)
    if type(scorer.backbone) is ConvolutionModel:
        return parity
    export_int8(scorer, folder / FP32, folder / INT8, sample_ids)
    taus = [
        tau_b(onnx_scores(OnnxScorer(folder / name), val_ids), val_lengths) for name in (FP32, INT8)
    ]
    if not (drop := taus[0] - taus[1]) <= max_tau_b_drop:
        (folder / INT8).unlink()
    return parity | {"int8_val_tau_b_drop": drop}
