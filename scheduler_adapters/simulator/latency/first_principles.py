"""Latency models and KV memory from public sizes and data-sheet peaks, without measurements."""

from dataclasses import replace

from lengthwise.errors import ConfigError
from scheduler_adapters.simulator.latency.facts import BLOCK_TOKENS, GpuFacts, ModelFacts
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.latency.staircase import (
    TILE_COLUMNS,
    TILE_REDUCTION,
    TILE_ROWS,
    StaircaseLatency,
)

_BANDWIDTH_FRACTION = 0.8
_COMPUTE_FRACTION = 0.6
_ATTENTION_FRACTION = 0.3
"""Shares of the data-sheet peaks that dense kernels and prefill attention reach in practice."""
_OVERHEAD_S = 0.003
_MEMORY_FRACTION = 0.9
_ACTIVATION_BYTES = 1.6e9
"""vLLM's default share of the memory, and the activations of a 2,048-token step."""


def roofline(model: ModelFacts, gpu: GpuFacts) -> AffineLatency:
    """Return the roofline: weights and KV at 0.8 of the bandwidth, products at 0.6 of the peak."""
    bytes_per_s = gpu.bytes_per_s * _BANDWIDTH_FRACTION
    return AffineLatency(
        base_s=_OVERHEAD_S,
        weights_s=model.weights_bytes / bytes_per_s,
        per_token_s=2 * model.parameters / (gpu.flops_per_s * _COMPUTE_FRACTION),
        per_context_token_s=model.kv_bytes_per_token / bytes_per_s,
        per_attention_pair_s=model.attention_flops_per_pair
        / (gpu.flops_per_s * _ATTENTION_FRACTION),
    )


def staircase(model: ModelFacts, gpu: GpuFacts) -> StaircaseLatency:
    """Return RAD's model with A100 tiles and the rates of the roofline."""
    bytes_per_s = gpu.bytes_per_s * _BANDWIDTH_FRACTION
    width = model.query_heads * model.head_dim
    multiply_s = 2 * model.parameters / (gpu.flops_per_s * _COMPUTE_FRACTION)
    moved_bytes = 2 * model.layers * (8 * model.hidden + 3 * model.ffn + 2 * width)
    tile = TILE_ROWS * TILE_COLUMNS
    read_s = model.kv_bytes_per_token / bytes_per_s
    pair_s = model.attention_flops_per_pair / (gpu.flops_per_s * _ATTENTION_FRACTION)
    return StaircaseLatency(
        layers=model.layers,
        width=width,
        linear_pass_s=max(model.weights_bytes / bytes_per_s, multiply_s * TILE_COLUMNS),
        per_token_s=moved_bytes / bytes_per_s,
        vector_tile_s=read_s * tile / (2 * width * model.layers),
        tile_pair_s=pair_s * tile * TILE_REDUCTION / (2 * width * model.layers),
    )


def slai_testbed() -> tuple[AffineLatency, int]:
    """Return Mistral-7B on one 48 GB RTX 6000 Ada, as in the SLAI paper's experiments.

    Bandwidths and FLOP rates are typical of such a card. A prompt of 8,192 tokens fills 3.96% of
    the KV memory, which explains the paper's threshold of 96%.
    """
    # Sarathi (FCFS, budget 512) then has a median TTFT of 0.5 s at 1.15 requests/s, the capacity
    # that the paper states.
    fitted = 0.9
    kv_bytes_per_token = 131_072
    return AffineLatency(
        base_s=fitted * 0.010,
        weights_s=fitted * 14.5e9 / 0.80e12,
        per_token_s=fitted * 2 * 7.24e9 / 130e12,
        per_context_token_s=fitted * kv_bytes_per_token / 0.72e12,
        per_attention_pair_s=fitted * 4 * 4096 * 16 / 60e12,
    ), 12_922


def phasor_testbed(model: ModelFacts, gpu: GpuFacts) -> AffineLatency:
    """Return the roofline of a V100-32GB as in the Phasor paper's experiments.

    Its products reach the 121 TFLOP/s that the paper measured, and a prompt is not multiplied with
    the embedding and the output layer. A prompt of 1,024 tokens then takes 0.119 s with
    Qwen2.5-7B; the paper shows 0.116 s.
    """
    multiplied = model.parameters - 2 * model.vocabulary * model.hidden
    return replace(roofline(model, gpu), per_token_s=2 * multiplied / 121e12)


def kv_blocks(name: str, model: ModelFacts, gpu: GpuFacts) -> int:
    """Return the KV blocks beside the weights."""
    free_bytes = gpu.memory_bytes * _MEMORY_FRACTION - _ACTIVATION_BYTES - model.weights_bytes
    if (blocks := int(free_bytes // (model.kv_bytes_per_token * BLOCK_TOKENS))) < 1:
        raise ConfigError(f"the weights of {name!r} leave no room for KV; use a larger GPU")
    return blocks
