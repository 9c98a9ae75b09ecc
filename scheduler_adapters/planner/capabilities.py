"""Checks of a policy against an engine at start: capabilities, end of thinking, planned steps."""

from copy import deepcopy

from lengthwise.errors import ConfigError, UnsupportedByEngine
from scheduler_adapters.policy import Policy, ask_rule
from scheduler_adapters.views import UNLIMITED, Capability, LoadView, StepRule


def require_capabilities(
    policy: Policy,
    offered: frozenset[Capability],
    engine: str,
    *,
    remedy: str = "run it in the simulator",
) -> None:
    """Refuse a policy that requires more than `engine` offers; `remedy` ends the message.

    Raises UnsupportedByEngine for a capability that is missing or unknown.
    """
    if missing := policy.traits.requires - offered:
        names = ", ".join(
            sorted(
                f"{each.name} ({each.value})"
                if isinstance(each, Capability)
                else f"{each!r} (no capability of views.Capability)"
                for each in missing
            )
        )
        raise UnsupportedByEngine(
            f"policy {policy.name!r} requires {names}, which {engine} cannot do; {remedy}"
        )


def require_think_end(policy: Policy, is_known: bool, remedy: str) -> None:
    """Raise `ConfigError` for a policy that ranks by phase if the end of thinking is unknown."""
    if policy.traits.sees_thinking and not is_known:
        raise ConfigError(
            f"policy {policy.name!r} ranks by phase, and nothing says which tokens end thinking; "
            f"{remedy}"
        )


def shape_of_first_step(policy: Policy) -> StepRule:
    """Return the policy's rule for an empty engine, computed by a copy of the policy."""
    return ask_rule(deepcopy(policy), LoadView())  # a rule may count steps


def plans_steps(policy: Policy) -> bool:
    """Return whether the policy, and not the engine, decides which residents run."""
    required = policy.traits.requires - {Capability.PREFIX_HITS}  # which changes no step
    return bool(required) or shape_of_first_step(policy) != UNLIMITED
