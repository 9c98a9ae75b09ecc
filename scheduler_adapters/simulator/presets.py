"""Models and GPUs by name, and the latency and KV memory that follow from their facts.

    latency, kv_blocks = preset("llama-3-8b@a100-80g")

First principles with public numbers: good for comparing policies, not a measurement of an engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_adapters.simulator.latency import RooflineLatency
from scoring_service.errors import ConfigError

BLOCK_TOKENS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """Sizes of a dense transformer in 16 bit."""

    parameters: float
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int = 128

    @property
    def weights_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, 2 bytes each."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2

    @property
    def attention_flops_per_pair(self) -> int:
        """QK and AV of one (token, earlier token) pair over all layers and heads."""
        return 4 * self.layers * self.query_heads * self.head_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """Data-sheet peaks in 16 bit."""

    memory_bytes: float
    bytes_per_s: float
    flops_per_s: float


MODELS = {
    "llama-3-8b": ModelFacts(parameters=8.03e9, layers=32, query_heads=32, kv_heads=8),
    "mistral-7b": ModelFacts(parameters=7.24e9, layers=32, query_heads=32, kv_heads=8),
    "qwen2.5-7b": ModelFacts(parameters=7.62e9, layers=28, query_heads=28, kv_heads=4),
    "deepseek-r1-distill-qwen-32b": ModelFacts(
        parameters=32.8e9, layers=64, query_heads=40, kv_heads=8
    ),
}
GPUS = {
    "a100-40g": GpuFacts(memory_bytes=40e9, bytes_per_s=1.555e12, flops_per_s=312e12),
    "a100-80g": GpuFacts(memory_bytes=80e9, bytes_per_s=2.039e12, flops_per_s=312e12),
    "h100-80g": GpuFacts(memory_bytes=80e9, bytes_per_s=3.35e12, flops_per_s=989e12),
    "h100-96g": GpuFacts(memory_bytes=96e9, bytes_per_s=3.35e12, flops_per_s=989e12),
    "h200": GpuFacts(memory_bytes=141e9, bytes_per_s=4.8e12, flops_per_s=989e12),
    "l40s": GpuFacts(memory_bytes=48e9, bytes_per_s=0.864e12, flops_per_s=362e12),
}

_BANDWIDTH_FRACTION = 0.8
_COMPUTE_FRACTION = 0.6
_ATTENTION_FRACTION = 0.3
"""Shares of the data-sheet peaks that dense kernels and prefill attention reach in practice."""
_OVERHEAD_S = 0.003
_MEMORY_FRACTION = 0.9
_ACTIVATION_BYTES = 1.6e9
"""What vLLM keeps free by default, and what activations of a 2,048-token step take."""


def preset(name: str) -> tuple[RooflineLatency, int]:
    """The latency model and the KV blocks of "model@gpu".

    Raises:
        ConfigError: no such model or GPU (the known ones are listed), or the weights do not fit.
    """
    model_name, _, gpu_name = name.partition("@")
    if model_name not in MODELS or gpu_name not in GPUS:
        raise ConfigError(
            f"no preset named {name!r}; use MODEL@GPU with a model of {', '.join(MODELS)} "
            f"and a GPU of {', '.join(GPUS)}"
        )
    model, gpu = MODELS[model_name], GPUS[gpu_name]
    return _roofline(model, gpu), _kv_blocks(name, model, gpu)


def _roofline(model: ModelFacts, gpu: GpuFacts) -> RooflineLatency:
    bytes_per_s = gpu.bytes_per_s * _BANDWIDTH_FRACTION
    return RooflineLatency(
        overhead_s=_OVERHEAD_S,
        weights_s=model.weights_bytes / bytes_per_s,
        per_token_s=2 * model.parameters / (gpu.flops_per_s * _COMPUTE_FRACTION),
        per_context_token_s=model.kv_bytes_per_token / bytes_per_s,
        per_attention_pair_s=model.attention_flops_per_pair
        / (gpu.flops_per_s * _ATTENTION_FRACTION),
    )


def _kv_blocks(name: str, model: ModelFacts, gpu: GpuFacts) -> int:
    free_bytes = gpu.memory_bytes * _MEMORY_FRACTION - model.weights_bytes - _ACTIVATION_BYTES
    blocks = int(free_bytes // (model.kv_bytes_per_token * BLOCK_TOKENS))
    if blocks < 1:
        raise ConfigError(f"the weights of {name!r} leave no room for KV; use a larger GPU")
    return blocks
