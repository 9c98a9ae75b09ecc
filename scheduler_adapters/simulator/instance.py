"""A simulated instance: its latency model, its KV memory and the engine's own limits."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.settings import Count, Part, Range, settings
from scheduler_adapters.planner.capabilities import require_capabilities
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.latency.presets import BLOCK_TOKENS, preset
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.views import Capability
from scheduler_adapters.workload.requests import Ints

Tokens = TypeVar("Tokens", int, Ints)
_CAPABILITIES = frozenset(Capability) - {Capability.OFFLOAD}


@settings
class Instance:
    """One engine replica; `Instance.preset("llama-3-8b@a100-80g")` makes a known one."""

    latency: LatencyModel
    kv_blocks: Count
    """Blocks of the whole KV memory."""
    max_num_seqs: Count = 256
    """Requests that may hold KV blocks at once (vLLM's name and default)."""
    max_tokens: Count | None = 2048
    """Token budget of a step: decodes + prefill chunks. None: no limit."""
    block_tokens: Count = BLOCK_TOKENS
    watermark_fraction: Part = 0.01
    """Share of the KV blocks that an admission leaves free, so that decodes can grow."""
    decode_headroom_blocks: Annotated[int, Range(least=0, most=1)] = 0
    """Free blocks required for a decode that needs none: 1 in Vidur and old vLLM, 0 here."""
    host: HostLink | None = None
    """Host memory for evicted KV blocks; None: they are computed again."""

    @classmethod
    def preset(cls, name: str = "llama-3-8b@a100-80g", **changes: Any) -> Instance:
        """Return the instance of "model@gpu"; `changes` are fields of this class.

        Raises:
            ConfigError: no such preset; the known ones are listed.
        """
        latency, kv_blocks = preset(name)
        settings: dict[str, Any] = {"latency": latency, "kv_blocks": kv_blocks}
        return cls(**settings | changes)

    def check(self, policy: Policy) -> None:
        """Check that this instance meets the requirements of a policy.

        Raises:
            UnsupportedByEngine: it requires more than `capabilities`.
        """
        remedy = "use an engine that can"
        if self.host is None and Capability.OFFLOAD in policy.traits.requires:
            remedy = "it has no host memory; give it host=HostLink(...), or --host-gb-per-s 50"
        require_capabilities(policy, self.capabilities, "the simulated instance", remedy=remedy)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of this instance; OFFLOAD needs host memory."""
        return _CAPABILITIES if self.host is None else _CAPABILITIES | {Capability.OFFLOAD}

    @property
    def watermark_blocks(self) -> int:
        return int(self.watermark_fraction * self.kv_blocks)

    @property
    def most_blocks(self) -> int:
        """Blocks that one request can have."""
        return self.kv_blocks - max(self.watermark_blocks, self.decode_headroom_blocks)

    def blocks(self, tokens: Tokens) -> Tokens:
        """Return the KV blocks that hold `tokens`, a number or an array."""
        return -(-tokens // self.block_tokens)

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds of one prompt's prefill, in steps of `max_tokens`."""
        size = self.max_tokens or tokens
        return sum(
            self.latency.step_s(0, 0, [(done, min(size, tokens - done))])
            for done in range(0, tokens, size)
        )

    def cannot_hold(self, prompt_tokens: Tokens, output_tokens: Tokens) -> NDArray[np.bool_]:
        """Return a mask (N,) of the requests that do not fit even alone."""
        return np.asarray(self.blocks(prompt_tokens + output_tokens) > self.most_blocks)
