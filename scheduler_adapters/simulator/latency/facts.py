"""Public sizes of models and data-sheet peaks of GPUs, in 16 bit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from lengthwise.errors import ConfigError

Facts = TypeVar("Facts")
BLOCK_TOKENS = 16
"""Tokens per KV block, vLLM's default."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes of a dense transformer in 16 bit."""

    parameters: float
    layers: int
    query_heads: int
    kv_heads: int
    hidden: int
    """Width of the vector between two layers."""
    ffn: int
    """Width inside the gated MLP."""
    vocabulary: int
    head_dim: int = 128

    @property
    def weights_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2

    @property
    def attention_flops_per_pair(self) -> int:
        """FLOPs of QK and AV for one (token, earlier token) pair, all layers and heads."""
        return 4 * self.layers * self.query_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Data-sheet peaks in 16 bit."""

    memory_bytes: float
    bytes_per_s: float
    flops_per_s: float


MODELS = {
    "llama-3-8b": ModelFacts(8.03e9, 32, 32, 8, 4096, 14336, 128256),
    "mistral-7b": ModelFacts(7.24e9, 32, 32, 8, 4096, 14336, 32000),
    "qwen2.5-7b": ModelFacts(7.62e9, 28, 28, 4, 3584, 18944, 152064),
    "deepseek-r1-distill-qwen-32b": ModelFacts(32.8e9, 64, 40, 8, 5120, 27648, 152064),
}
"""Parameters, layers, query heads, KV heads, hidden, ffn, vocabulary."""
GPUS = {
    "v100-32g": GpuFacts(32e9, 0.9e12, 125e12),
    "a100-40g": GpuFacts(40e9, 1.555e12, 312e12),
    "a100-80g": GpuFacts(80e9, 2.039e12, 312e12),
    "h100-80g": GpuFacts(80e9, 3.35e12, 989e12),
    "h100-96g": GpuFacts(96e9, 3.35e12, 989e12),
    "h200": GpuFacts(141e9, 4.8e12, 989e12),
    "l40s": GpuFacts(48e9, 0.864e12, 362e12),
}
"""Bytes of memory, bytes/s, FLOP/s."""


def facts_of(kind: str, name: str, known: Mapping[str, Facts]) -> Facts:
    """Return an entry of `MODELS` or `GPUS`. Raises ConfigError for an unknown one, with these."""
    if name not in known:
        raise ConfigError(f"no {kind} named {name!r}; use one of {', '.join(known)}")
    return known[name]
