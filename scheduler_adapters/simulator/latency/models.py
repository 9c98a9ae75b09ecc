"""Latency models: the interface of all, and one of linear terms.

The arguments of a step are its number of decodes, the sum of their contexts (tokens whose KV is
read), and its prefill chunks. A chunk is (tokens already processed, tokens in this chunk).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np

from lengthwise.errors import ConfigError, require
from scheduler_adapters.timeline.steps import Chunk as Chunk, chunk_sizes
from scheduler_adapters.workload.requests import Floats

AFFINE, TABLES = range(2)
"""Kinds of latency models that compiled loops support."""
CompiledLatency = tuple[int, Floats, Floats, Floats, Floats]
"""Kind, numbers, and three tables: by tokens, for decodes, and for prefills."""
_NO_TABLE: Floats = np.zeros(0)
_NO_GRID: Floats = np.zeros((0, 0))


class LatencyModel(ABC):
    """Predicts the duration of one engine step. Pure and deterministic."""

    @abstractmethod
    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        """Return the seconds of a step, which has at least one decode or prefill."""

    @property
    def shortest_step_s(self) -> float:
        """Lower bound of the seconds of a step; 0 where there is none."""
        return 0.0

    def compiled(self) -> CompiledLatency | None:
        """Return the model as numbers for compiled loops; None if they do not support it."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class AffineLatency(LatencyModel):
    """A sum of linear terms, as fitted to measured steps; with `weights_s` it is a roofline.

    Then all weights are read once per step while they are multiplied with every token, and the
    longer of the two counts. Attention comes on top.
    """

    base_s: float
    """Per step: launching kernels, scheduling, sampling."""
    weights_s: float = 0.0
    """Reading all weights once."""
    per_token_s: float = 0.0
    """Per token in the batch, decodes and prefill alike."""
    per_context_token_s: float = 0.0
    """Per token of decode context."""
    per_attention_pair_s: float = 0.0
    """Per (prefill token, token before it) pair."""

    def __post_init__(self) -> None:
        for field in fields(self):
            seconds = getattr(self, field.name)
            require(field.name, seconds, seconds >= 0, "seconds >= 0")
        if self.shortest_step_s == 0:
            raise ConfigError("base_s and per_token_s are both 0; a step must take time")

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens, pairs = chunk_sizes(prefills)
        return (
            self.base_s
            + max(self.weights_s, (num_decodes + tokens) * self.per_token_s)
            + decode_context * self.per_context_token_s
            + pairs * self.per_attention_pair_s
        )

    @property
    def shortest_step_s(self) -> float:
        return self.base_s + max(self.weights_s, self.per_token_s)

    def compiled(self) -> CompiledLatency:
        return AFFINE, np.array(astuple(self)), _NO_TABLE, _NO_GRID, _NO_GRID
