"""Step times as sums of kernels measured one by one on a real GPU, and of its collectives."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lengthwise.errors import SchedulingError
from scheduler_adapters.simulator.latency.kernels.grid import Floats, Grid2, Grid3
from scheduler_adapters.simulator.latency.models import (
    KERNELS,
    Chunk,
    CompiledLatency,
    LatencyModel,
)

MAX_TOKENS = 16_384
"""Longest step in the tables of linear layers."""
MAX_SEQUENCES = 2_048
_LARGEST_GRAPH = 512
_GRAPH_STEP = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelLatency(LatencyModel):
    """Linear layers by tokens, output layer by sequences, attention by contexts: summed.

    Decodes count at their mean context: an engine tells the sum only, and attention is linear in
    the context of each. Prefill chunks are added up one by one. Where the decodes of a step that
    also prefills were measured, their time comes from `mixed_s`: attention kernels for long queries
    are slower with single ones.
    """

    tokens_s: Sequence[float]
    """[tokens of the step]: all kernels whose time depends on the number of tokens alone."""
    sequences_s: Sequence[float]
    """[sequences of the step]: the output layer and the sampler."""
    prefill_s: Grid2
    """(tokens of a chunk, tokens before it): attention of one chunk, all layers."""
    decode_s: Grid2
    """(decodes, mean context): attention of all decodes, all layers."""
    mixed_s: Grid3 | None = None
    """(prefill tokens beside them, decodes, mean context); None: as `decode_s`."""

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        seconds, prefill_tokens = 0.0, 0
        for before, chunk in prefills:
            prefill_tokens += chunk
            seconds += self.prefill_s.at(chunk, before)
        if num_decodes:
            context = decode_context / num_decodes
            if prefill_tokens and self.mixed_s is not None:
                seconds += self.mixed_s.at(prefill_tokens, num_decodes, context)
            else:
                seconds += self.decode_s.at(num_decodes, context)
        tokens, sequences = num_decodes + prefill_tokens, num_decodes + len(prefills)
        try:
            return seconds + self.tokens_s[tokens] + self.sequences_s[sequences]
        except IndexError as error:
            raise SchedulingError(
                f"the kernel tables end before a step of {tokens} tokens and {sequences} "
                f"sequences; use a token budget of at most {len(self.tokens_s) - 1} and at most "
                f"{len(self.sequences_s) - 1} requests at a time"
            ) from error

    def compiled(self) -> CompiledLatency | None:
        if self.mixed_s is not None:
            return None
        tokens_s, sequences_s = np.array(self.tokens_s), np.array(self.sequences_s)
        return KERNELS, sequences_s, tokens_s, self.decode_s.packed(), self.prefill_s.packed()


def padded(values: Floats) -> list[float]:
    """Return the values by tokens with steps padded to the sizes of captured CUDA graphs.

    vLLM captures 1, 2, 4 and the multiples of 8 up to 512 by default, and runs a smaller step in
    the next larger graph.
    """
    tokens = np.arange(len(values))
    up = -(-tokens // _GRAPH_STEP) * _GRAPH_STEP
    up = np.where(tokens <= 4, np.array([0, 1, 2, 4, 4])[np.minimum(tokens, 4)], up)
    up = np.where(tokens > _LARGEST_GRAPH, tokens, up)
    padded_values: list[float] = values[np.minimum(up, len(values) - 1)].tolist()
    return padded_values


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The link between the GPUs of one model: a collective takes its latency and its bytes."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: Floats) -> Floats:
        """Return the seconds of a collective that moves `num_bytes` (N,)."""
        return self.latency_s + num_bytes / self.bytes_per_s


def all_reduce_s(hidden: int, num_gpus: int, link: Link) -> Floats:
    """Return seconds to sum `hidden` numbers per token over a ring, by tokens (MAX_TOKENS + 1,)."""
    return link.seconds(_vector_bytes(hidden) * 2 * (num_gpus - 1) / num_gpus)


def gather_and_scatter_s(hidden: int, num_gpus: int, link: Link) -> Floats:
    """Return seconds to bring all tokens to each GPU and the results back, by tokens of all."""
    return 2 * link.seconds(_vector_bytes(hidden) * (num_gpus - 1) / num_gpus)


def _vector_bytes(hidden: int) -> Floats:
    return np.arange(MAX_TOKENS + 1, dtype=np.float64) * hidden * 2  # 16 bit
