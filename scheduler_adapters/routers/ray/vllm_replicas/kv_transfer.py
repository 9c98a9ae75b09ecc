"""KV from one vLLM to another by its NIXL connector, in the form that vLLM's own pools use.

A leg that may move ends with its KV kept for `LEASE_S`; the next one pulls it, and until then
prolongs the lease. vLLM 0.32 has a flaw at the end of a block: the destination claims the KV of
the newest token too, which was never computed, and its process ends if that token begins a block.
Such a request is not handed over; its context is computed again.
"""

from collections.abc import Mapping
from typing import Any, Final

from scheduler_adapters.routers.legs import Leg

LEASE_S: Final = 12
"""Seconds for which a leg's KV is kept after its end, unless it is pulled before. vLLM prolongs it
every sixth part of this, in whole seconds."""
_KEPT: Final = {"do_remote_decode": True, "do_remote_prefill": False}


def engine_arguments(is_on_cpu: bool) -> dict[str, Any]:
    """Return vLLM's engine arguments for a replica that keeps KV and pulls it."""
    return {
        "kv_transfer_config": {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
            **({"kv_buffer_device": "cpu"} if is_on_cpu else {}),
        }
    }


def parameters(leg: Leg, replica: str) -> dict[str, Any] | None:
    """Return vLLM's `kv_transfer_params` of a leg in `replica`; None: no KV is kept or pulled."""
    pauses = leg.pause_after is not None or leg.pauses_at_think_end
    kept = _KEPT if pauses else {}
    if leg.kv is None or leg.current == replica:  # its own prefix cache has it
        return dict(kept) or None
    return {**leg.kv["parameters"], "do_remote_decode": pauses, "do_remote_prefill": True}


def kept_kv(
    returned: Mapping[str, Any] | None, context_tokens: int, block_tokens: int
) -> dict[str, Any] | None:
    """Return the KV of a paused leg for the next one; None at the end of a block."""
    if not returned or (context_tokens - 1) % block_tokens == 0:
        return None
    # With this entry the destination counts the cache hits of the source in place of its own.
    kept = {k: v for k, v in returned.items() if k != "remote_prefill_cached_tokens"}
    return {"parameters": kept, "lease_s": LEASE_S}
