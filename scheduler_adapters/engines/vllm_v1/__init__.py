"""vLLM V1 under our policies: `--scheduler-cls scheduler_adapters.engines.vllm_v1.pars`.

A vLLM engine comes in, the same engine with its queue in rank order comes out. Start with
`rank_scheduler.py`; its factories, one per policy, are names of this package too.
"""

from typing import Any

from scheduler_adapters.policy import POLICIES

_FACTORIES = frozenset({"scheduler", *(name.replace("-", "_") for name in POLICIES)})


def __getattr__(name: str) -> Any:
    """Return a factory of `rank_scheduler.py`. vLLM is imported on first use only."""
    if name not in _FACTORIES:
        raise AttributeError(f"no policy {name!r}; use one of {', '.join(sorted(_FACTORIES))}")
    from scheduler_adapters.engines.vllm_v1 import rank_scheduler

    return getattr(rank_scheduler, name)
