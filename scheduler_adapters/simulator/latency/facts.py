"""Sizes of models and peaks of GPUs: public numbers, 16 bit throughout."""

from __future__ import annotations

from dataclasses import dataclass, replace

BLOCK_TOKENS = 16
"""Tokens per KV block, vLLM's default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """Sizes of a dense transformer in 16 bit."""

    parameters: float
    layers: int
    query_heads: int
    kv_heads: int
    hidden: int
    """Width of the vector that blocks hand on."""
    ffn: int
    """Width inside the gated MLP."""
    vocabulary: int
    head_dim: int = 128

    def shard(self, num_gpus: int) -> ModelFacts:
        """What each of `num_gpus` tensor-parallel GPUs holds; the vector keeps its width."""
        return replace(
            self,
            parameters=self.parameters / num_gpus,
            query_heads=self.query_heads // num_gpus,
            kv_heads=self.kv_heads // num_gpus,
            ffn=self.ffn // num_gpus,
            vocabulary=self.vocabulary // num_gpus,
        )

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
    "llama-3-8b": ModelFacts(
        parameters=8.03e9,
        layers=32,
        query_heads=32,
        kv_heads=8,
        hidden=4096,
        ffn=14336,
        vocabulary=128256,
    ),
    "mistral-7b": ModelFacts(
        parameters=7.24e9,
        layers=32,
        query_heads=32,
        kv_heads=8,
        hidden=4096,
        ffn=14336,
        vocabulary=32000,
    ),
    "qwen2.5-7b": ModelFacts(
        parameters=7.62e9,
        layers=28,
        query_heads=28,
        kv_heads=4,
        hidden=3584,
        ffn=18944,
        vocabulary=152064,
    ),
    "deepseek-r1-distill-qwen-32b": ModelFacts(
        parameters=32.8e9,
        layers=64,
        query_heads=40,
        kv_heads=8,
        hidden=5120,
        ffn=27648,
        vocabulary=152064,
    ),
}
MEASURED_MODELS = {
    "llama-3.1-8b": MODELS["llama-3-8b"],
    "qwen3-32b": ModelFacts(
        parameters=32.8e9,
        layers=64,
        query_heads=64,
        kv_heads=8,
        hidden=5120,
        ffn=25600,
        vocabulary=151936,
    ),
    "qwen3-30b-a3b": ModelFacts(
        parameters=30.5e9,
        layers=48,
        query_heads=32,
        kv_heads=4,
        hidden=2048,
        ffn=768,
        vocabulary=151936,
    ),
    "llama-2-70b": ModelFacts(
        parameters=69e9,
        layers=80,
        query_heads=64,
        kv_heads=8,
        hidden=8192,
        ffn=28672,
        vocabulary=32000,
    ),
    "bloom-176b": ModelFacts(
        parameters=176.2e9,
        layers=70,
        query_heads=112,
        kv_heads=112,
        hidden=14336,
        ffn=57344,
        vocabulary=250880,
    ),
}
"""Models that only measurements are there for; `ffn` of a mixture is that of one expert."""
GPUS = {
    "a100-40g": GpuFacts(memory_bytes=40e9, bytes_per_s=1.555e12, flops_per_s=312e12),
    "a100-80g": GpuFacts(memory_bytes=80e9, bytes_per_s=2.039e12, flops_per_s=312e12),
    "h100-80g": GpuFacts(memory_bytes=80e9, bytes_per_s=3.35e12, flops_per_s=989e12),
    "h100-96g": GpuFacts(memory_bytes=96e9, bytes_per_s=3.35e12, flops_per_s=989e12),
    "h200": GpuFacts(memory_bytes=141e9, bytes_per_s=4.8e12, flops_per_s=989e12),
    "l40s": GpuFacts(memory_bytes=48e9, bytes_per_s=0.864e12, flops_per_s=362e12),
}
MEASURED_GPUS = {
    "rtx-4090": GpuFacts(memory_bytes=24e9, bytes_per_s=1.008e12, flops_per_s=165e12),
    "rtx-pro-6000": GpuFacts(memory_bytes=96e9, bytes_per_s=1.597e12, flops_per_s=504e12),
}
