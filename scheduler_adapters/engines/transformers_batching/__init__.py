"""The continuous batching of transformers under our policies.

Start with `rank_scheduler.py`; `use_policy` is a name of this package too.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Return `use_policy` of `rank_scheduler.py`. transformers is imported on first use only."""
    if name != "use_policy":
        raise AttributeError(name)
    from scheduler_adapters.engines.transformers_batching.rank_scheduler import use_policy

    return use_policy
