"""A BERT ranker as one INT8 ONNX graph, built from its weights.

Weights are INT8 with a scale per output channel; what flows into them is UINT8 with one scale per
layer, fixed by its range over a sample of prompts. Some channels have a range many times that of
the others; the square root of the ratio moves into the weights (SmoothQuant, Xiao et al. 2023).
ONNX Runtime's dynamic quantization scales each batch separately. Here the score of a prompt is bit
for bit independent of the other prompts of a run.

Integer products are exact on every processor (`_pair_scales`) and the rest works row by row, except
products of one row with a matrix: the runtime sums those in an order that depends on the padded
length. So none has one row: means use two equal rows, the first token's vector two tokens.

Shapes: B prompts, L tokens, H width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import numpy as np
import onnx
import torch
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from transformers import BertModel

from training.ranker.encoder import PromptScorer

Ranges = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
"""Name of a linear layer -> lowest and highest value of every channel that flows into it."""

_OPSET: Final = 18
_IR_VERSION: Final = 9
_RUNTIME: Final = "com.microsoft"


def is_supported(scorer: PromptScorer) -> bool:
    """Return whether `build_int8` can write this scorer; others need dynamic quantization."""
    config = cast(Any, scorer.backbone).config
    is_bert = type(scorer.backbone) is BertModel and not config.is_decoder
    positions = getattr(config, "position_embedding_type", "absolute")
    is_plain = is_bert and config.hidden_act == "gelu" and positions == "absolute"
    return is_plain and scorer.pooling != "last" and scorer.head.out_features == 1


def observe_ranges(scorer: PromptScorer, ids: Sequence[Sequence[int]]) -> Ranges:
    """Return the input ranges of every linear layer of the backbone over tokenized prompts."""
    ranges: dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}

    def note(name: str, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        low, high = (_array(part) for part in torch.aminmax(inputs[0].flatten(0, -2), dim=0))
        lowest, highest = ranges.get(name, (low, high))
        ranges[name] = np.minimum(lowest, low), np.maximum(highest, high)

    layers = [(n, m) for n, m in scorer.backbone.named_modules() if isinstance(m, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(partial(note, name)) for name, layer in layers]
    try:
        with torch.inference_mode():
            for prompt in ids:
                input_ids = torch.tensor([prompt])
                scorer(input_ids, torch.ones_like(input_ids))
    finally:
        for hook in hooks:
            hook.remove()
    return ranges


def build_int8(scorer: PromptScorer, ranges: Ranges) -> onnx.ModelProto:
    """Return the graph input_ids, attention_mask (int64, B x L, L >= 2) -> score (float32, B)."""
    graph = _Graph(ranges)
    x_BLH = _embed(graph, scorer)
    mask_BL = graph.add("Cast", "attention_mask", to=TensorProto.INT32)
    layers = cast(Any, scorer.backbone).encoder.layer
    for number, layer in enumerate(layers):
        narrow = number == len(layers) - 1 and scorer.pooling in ("cls", "pooler")
        x_BLH = _layer(graph, layer, f"encoder.layer.{number}", x_BLH, mask_BL, narrow=narrow)
    pooled_BH = _pool(graph, scorer, x_BLH)
    weights = graph.constant(_array(scorer.head.weight)), graph.constant(_array(scorer.head.bias))
    score_B1 = graph.add("Gemm", pooled_BH, *weights, transB=1)
    graph.add("Squeeze", score_B1, graph.constant([1]), output="score")
    return graph.model()


def _embed(graph: _Graph, scorer: PromptScorer) -> str:
    embeddings = cast(Any, scorer.backbone).embeddings
    words, scales = _quantize_rows(_array(embeddings.word_embeddings.weight))
    rows = graph.add("Gather", graph.constant(words), "input_ids")
    scales_BL1 = graph.add("Gather", graph.constant(scales[:, None]), "input_ids")
    words_BLH = graph.add("Mul", graph.add("Cast", rows, to=TensorProto.FLOAT), scales_BL1)
    positions = _array(embeddings.position_embeddings.weight)
    table_LH = graph.constant(positions + _array(embeddings.token_type_embeddings.weight)[0])
    length = graph.add("Shape", "input_ids", start=1, end=2)
    first, axis = graph.constant([0]), graph.constant([0])
    positions_LH = graph.add("Slice", table_LH, first, length, axis)
    summed_BLH = graph.add("Add", words_BLH, positions_LH)
    return graph.layer_norm(summed_BLH, embeddings.LayerNorm)


def _layer(graph: _Graph, layer: Any, name: str, x: str, mask: str, *, narrow: bool) -> str:
    attention = layer.attention.self
    projections = attention.query, attention.key, attention.value
    quantized = graph.quantize(x, f"{name}.attention.self.query", *projections)
    key = graph.linear(quantized, attention.key)
    value = graph.linear(quantized, attention.value)
    if narrow:
        bounds = [graph.constant([number]) for number in (0, 2, 1)]
        x = graph.add("Slice", x, *bounds)
        quantized = replace(quantized, name=graph.add("Slice", quantized.name, *bounds))
    query = graph.linear(quantized, attention.query)
    inputs, heads = (query, key, value, "", mask), attention.num_attention_heads
    mixed = graph.add("MultiHeadAttention", *inputs, domain=_RUNTIME, num_heads=heads)
    output = layer.attention.output
    mixed = graph.linear(graph.quantize(mixed, f"{name}.attention.output.dense"), output.dense)
    x = graph.layer_norm(graph.add("Add", mixed, x), output.LayerNorm)
    grow = layer.intermediate.dense
    wide = graph.linear(graph.quantize(x, f"{name}.intermediate.dense", grow), grow)
    wide = graph.add("Gelu", wide, domain=_RUNTIME)
    back = graph.linear(graph.quantize(wide, f"{name}.output.dense"), layer.output.dense)
    return graph.layer_norm(graph.add("Add", back, x), layer.output.LayerNorm)


def _pool(graph: _Graph, scorer: PromptScorer, x_BLH: str) -> str:
    first = graph.constant(0)
    if scorer.pooling == "mean":
        mask_BL = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
        mask_B1L = graph.add("Unsqueeze", mask_BL, graph.constant([1]))
        mask_B2L = graph.add("Concat", mask_B1L, mask_B1L, axis=1)
        sums_BH = graph.add("Gather", graph.add("MatMul", mask_B2L, x_BLH), first, axis=1)
        counts_B1 = graph.add("ReduceSum", mask_BL, graph.constant([1]))
        return graph.add("Div", sums_BH, counts_B1)
    first_BH = graph.add("Gather", x_BLH, first, axis=1)
    if scorer.pooling == "cls":
        return first_BH
    dense = cast(Any, scorer.backbone).pooler.dense
    return graph.add("Tanh", graph.linear(graph.quantize(first_BH, "pooler.dense"), dense))


@dataclass(frozen=True, slots=True)
class _Quantized:
    name: str
    scale: str
    zero_point: str
    shift: NDArray[np.float32] | None
    """Divisor of each channel."""


class _Graph:
    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, values: ArrayLike) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def add(
        self, kind: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any
    ) -> str:
        output = output or f"{kind}_{len(self._nodes)}"
        node = helper.make_node(kind, inputs, [output], output, domain=domain, **attributes)
        self._nodes.append(node)
        return output

    def quantize(self, x: str, layer: str, *smoothed: nn.Linear) -> _Quantized:
        """Quantise the input of a linear layer to UINT8 by its range.

        Before `smoothed` layers it is `x / shift`, of similar ranges; `linear` multiplies back.
        """
        (low, high), shift = self._ranges[layer], None
        if smoothed:
            largest_x = np.maximum(np.abs(low), np.abs(high))
            largest_w = np.max(
                [np.abs(_array(each.weight)).max(axis=0) for each in smoothed], axis=0
            )
            shift = np.sqrt(np.maximum(largest_x, 1e-5) / np.maximum(largest_w, 1e-5))
            x = self.add("Mul", x, self.constant(1 / shift))
            low, high = low / shift, high / shift
        lowest, highest = min(float(low.min()), 0.0), max(float(high.max()), 0.0)
        scale = max((highest - lowest) / 255, 1e-9)
        scale_name = self.constant(np.array(scale, dtype=np.float32))
        zero_point = self.constant(np.array(round(-lowest / scale), dtype=np.uint8))
        name = self.add("QuantizeLinear", x, scale_name, zero_point)
        return _Quantized(name, scale_name, zero_point, shift)

    def linear(self, x: _Quantized, layer: nn.Linear) -> str:
        weight = _array(layer.weight)
        shifted = weight if x.shift is None else weight * x.shift
        rows, row_scales = _quantize_rows(shifted, least_scales=_pair_scales(shifted))
        weights, scales = self.constant(np.ascontiguousarray(rows.T)), self.constant(row_scales)
        bias = self.constant(_array(layer.bias))
        inputs = (x.name, weights, x.scale, scales, x.zero_point, "", bias)
        return self.add("MatMulIntegerToFloat", *inputs, domain=_RUNTIME)

    def layer_norm(self, x: str, norm: nn.LayerNorm) -> str:
        scale_and_bias = map(self.constant, (_array(norm.weight), _array(norm.bias)))
        return self.add("LayerNormalization", x, *scale_and_bias, axis=-1, epsilon=norm.eps)

    def model(self) -> onnx.ModelProto:
        shape = ["batch", "tokens"]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, shape)
            for name in ("input_ids", "attention_mask")
        ]
        score = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch"])
        graph = helper.make_graph(self._nodes, "ranker", inputs, [score], self._constants)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_RUNTIME, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _quantize_rows(
    matrix: NDArray[np.float32], least_scales: NDArray[np.float32] | float = 0.0
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    scales = np.abs(matrix).max(axis=1) / 127
    scales = np.maximum(np.maximum(scales, least_scales), 1e-9)
    return np.round(matrix / scales[:, None]).astype(np.int8), scales


def _pair_scales(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the least scale of each row at which no processor saturates.

    Without VNNI instructions an x86 processor adds two neighbouring UINT8 x INT8 products in 16
    bits: 255 (|a| + |b|) must stay below 2^15, so a pair of weights within 128. Rounding adds one.
    """
    padded = np.pad(np.abs(matrix), ((0, 0), (0, matrix.shape[1] % 2)))
    return np.asarray((padded[:, ::2] + padded[:, 1::2]).max(axis=1) / 127)


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.asarray(tensor.detach().float().numpy())
