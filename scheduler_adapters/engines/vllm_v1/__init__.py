"""vLLM V1 under our policies: `--scheduler-cls scheduler_adapters.engines.vllm_v1.pars`.

A vLLM engine comes in, the same engine with its queue in rank order comes out. Start with
`rank_scheduler.py`; its factories, one per policy, are names of this package too.
"""

from functools import partial
from typing import Any, Final

from scheduler_adapters.policy import POLICIES

TESTED: Final = "0.26 to 0.32"
"""The versions of vLLM that decisions and answers were tested with."""


def __getattr__(name: str) -> Any:
    """Return the factory of a policy by name, "_" for "-", as `--scheduler-cls` looks it up, or the
    one for which the settings name the policy. vLLM is imported on first use only."""
    policy = name.replace("_", "-")
    if policy not in POLICIES and name != "scheduler":
        raise AttributeError(f"no policy {policy!r}; use one of {', '.join(sorted(POLICIES))}")
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import scheduler

    return scheduler if name == "scheduler" else partial(scheduler, lengthwise_policy=policy)
