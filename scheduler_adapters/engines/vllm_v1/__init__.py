"""vLLM V1 under our policies: `--scheduler-cls scheduler_adapters.engines.vllm_v1.pars`.

Start with `rank_scheduler.py`. Its factories, one per policy, are names of this package too.
"""

from functools import partial
from typing import Any, Final

from scheduler_adapters.policy import POLICIES

TESTED: Final = "0.26 to 0.32"
"""Versions of vLLM in which decisions and answers were tested."""


def __getattr__(name: str) -> Any:
    """Return the factory of a policy, with "_" for "-", or the one configured by the settings.

    `--scheduler-cls` calls it. vLLM is imported at the first call.
    """
    policy = name.replace("_", "-")
    if policy not in POLICIES and name != "scheduler":
        raise AttributeError(f"no policy {policy!r}; use one of {', '.join(sorted(POLICIES))}")
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import scheduler

    return scheduler if name == "scheduler" else partial(scheduler, lengthwise_policy=policy)
