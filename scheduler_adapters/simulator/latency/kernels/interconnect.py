"""Communication in each step between the GPUs that share one model."""

from dataclasses import dataclass

import numpy as np

from scheduler_adapters.simulator.latency.kernels.grid import Floats
from scheduler_adapters.simulator.latency.kernels.kernel_latency import MAX_TOKENS

_BYTES = 2
"""Of a number: 16 bit."""


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
    return np.arange(MAX_TOKENS + 1, dtype=np.float64) * hidden * _BYTES
