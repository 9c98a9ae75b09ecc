"""Which policy an engine is to run, and whether that engine can. Imports no engine."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from scheduler_adapters.policy import POLICIES, Policy, ask_rule, load_policy
from scheduler_adapters.views import UNLIMITED, Capability, LoadView, StepRule
from scoring_service.errors import ConfigError, UnsupportedByEngine

SETTINGS: Final = "lengthwise"
"""The key of vLLM's `additional_config` that holds `policy`, `think_end` and the policy's own."""
_OURS: Final = ("policy", "think_end")


def make_policy(additional_config: Any, name: str | None = None) -> Policy:
    """The policy that vLLM's `additional_config` asks for; `name` where the factory has chosen it.

    Raises:
        ConfigError: no policy is named, two are, or the settings are not the policy's.
    """
    config = additional_config if isinstance(additional_config, Mapping) else {}
    settings = config.get(SETTINGS, {})
    if not isinstance(settings, Mapping):
        raise ConfigError(f"additional_config[{SETTINGS!r}] is {settings!r}; use a JSON object")
    named = settings.get("policy", name)
    if named is None or (name is not None and named != name):
        raise ConfigError(
            f"additional_config[{SETTINGS!r}] names policy {named!r}, --scheduler-cls {name!r}; "
            f"name one of {', '.join(sorted(POLICIES))}, or package.module:callable, once"
        )
    return load_policy(named, **{k: v for k, v in settings.items() if k not in _OURS})


def think_end(additional_config: Any) -> tuple[int, ...]:
    """The token ids that `additional_config` says end thinking; empty if it says nothing.

    Raises:
        ConfigError: not a list of token ids.
    """
    config = additional_config if isinstance(additional_config, Mapping) else {}
    ids = config.get(SETTINGS, {}).get("think_end", [])
    if not isinstance(ids, list | tuple) or not all(isinstance(i, int) and i >= 0 for i in ids):
        raise ConfigError(f"think_end is {ids!r}; use a list of token ids, such as [128014]")
    return tuple(ids)


def require_capabilities(policy: Policy, offered: frozenset[Capability], engine: str) -> None:
    """Raise `UnsupportedByEngine` unless `engine` offers all that `policy` requires."""
    if missing := policy.traits.requires - offered:
        names = ", ".join(sorted(f"{c.name} ({c.value})" for c in missing))
        raise UnsupportedByEngine(
            f"policy {policy.name!r} requires {names}, which the {engine} adapter cannot do; "
            "run it in the simulator"
        )


def shape_of_first_step(policy: Policy) -> StepRule:
    """The policy's rule for an empty engine; asked of a copy, for rules may count their steps."""
    return ask_rule(deepcopy(policy), LoadView())


def plans_steps(policy: Policy) -> bool:
    """Whether the policy cares which residents run; if not, the engine's own rules do for them."""
    return bool(policy.traits.requires) or shape_of_first_step(policy) != UNLIMITED
