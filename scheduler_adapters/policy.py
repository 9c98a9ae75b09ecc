"""The interface between schedulers and engines: a policy ranks requests, an engine does the rest.

    class ShortestPrompt(Policy):
        name = "shortest-prompt"

        def rank(self, request, load):
            return Rank((request.prompt_tokens,))

is a whole scheduler. It runs in the simulator and in real engines unchanged, by name
(`load_policy("pars")`) or by import path (`load_policy("my_package.policies:ShortestPrompt")`).
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from scheduler_adapters.views import UNLIMITED, Capability, LoadView, Rank, RequestView, StepRule
from scoring_service.errors import ConfigError, InvalidDecision, LengthwiseError


class Policy(ABC):
    """Orders the requests of one instance. Pure: no clock, randomness, I/O or per-request state."""

    name: ClassVar[str]
    requires: ClassVar[frozenset[Capability]] = frozenset()
    """Compared with the engine's capabilities once, at start (`UnsupportedByEngine`)."""

    keeps_time: ClassVar[bool] = False
    """The key holds the time of asking, so an engine must notice expiry in the step it happens."""
    sees_thinking: ClassVar[bool] = False
    """The rank differs between reasoning and answering: the engine must watch for that change."""

    is_static: ClassVar[bool] = False
    """The rank depends on the request's fixed fields and its phase only, up to a `then`, and the
    step rule on the size of the KV memory at most: a fast simulator may ask beforehand."""

    @abstractmethod
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        """How urgent `request` is now. Lower keys are served first."""

    def step_rule(self, load: LoadView) -> StepRule:
        """The shape of the next step; asked exactly once per engine step."""
        return UNLIMITED


def ask_rank(policy: Policy, request: RequestView, load: LoadView) -> Rank:
    """`policy.rank`, and nothing that would break an engine: how engines ask.

    Raises:
        InvalidDecision: the policy raised, or a key holds NaN, or it is valid for no token.
    """
    try:
        rank = policy.rank(request, load)
        for number in rank.key:
            if number != number:
                raise ValueError(f"a NaN in {rank}")
        for number in rank.evict_key or ():
            if number != number:
                raise ValueError(f"a NaN in {rank}")
        if not rank.valid_tokens > 0:
            raise ValueError(f"valid_tokens is {rank.valid_tokens}, below 1")
    except Exception as error:
        raise InvalidDecision(
            f"policy {policy.name!r} failed to rank request {request.request_id!r}: "
            f"{type(error).__name__}: {error}; return a Rank whose keys are tuples of numbers"
        ) from error
    return rank


def ask_rule(policy: Policy, load: LoadView) -> StepRule:
    """`policy.step_rule`, and nothing that would break an engine.

    Raises:
        InvalidDecision: the policy raised, or answered with something else.
    """
    try:
        rule = policy.step_rule(load)
    except Exception as error:
        raise no_rule(policy, load, error) from error
    if not isinstance(rule, StepRule):
        raise no_rule(policy, load, rule)
    return rule


def no_rule(policy: Policy, load: LoadView, instead: object) -> InvalidDecision:
    """What to raise where `step_rule` raised or gave something else `instead` of a rule."""
    return InvalidDecision(
        f"policy {policy.name!r} gave {instead!r} for the rule of step {load.step}; "
        "return a StepRule"
    )


POLICIES: dict[str, str] = {
    "fcfs": "scheduler_adapters.policies.fcfs:FCFS",
    "pars": "scheduler_adapters.policies.shortest_predicted:pars",
    "pointwise": "scheduler_adapters.policies.shortest_predicted:pars",
    "listwise": "scheduler_adapters.policies.shortest_predicted:pars",
    "oracle": "scheduler_adapters.policies.shortest_predicted:pars",
    "sarathi": "scheduler_adapters.policies.sarathi:Sarathi",
    "vllm-prefill-first": "scheduler_adapters.policies.prefill_first:PrefillFirst",
    "orca": "scheduler_adapters.policies.prefill_first:Orca",
    "request-level": "scheduler_adapters.policies.prefill_first:RequestLevel",
    "slai": "scheduler_adapters.policies.slai:SLAI",
    "rad": "scheduler_adapters.policies.rad:RAD",
    "rad-twin": "scheduler_adapters.policies.rad:RADTwin",
    "round-robin": "scheduler_adapters.policies.round_robin:RoundRobin",
    "pascal": "scheduler_adapters.policies.pascal:Pascal",
}
"""Name -> where the policy is made. PARS, its baselines and the oracle differ in scores only."""


def load_policy(name: str, **settings: Any) -> Policy:
    """Make a policy by its name in `POLICIES` or by the import path `package.module:callable`.

    Raises:
        ConfigError: no such policy (the known ones are listed), or it does not take these settings.
    """
    path = POLICIES.get(name, name)
    module_name, _, attribute = path.partition(":")
    if not attribute:
        known = ", ".join(sorted(POLICIES))
        raise ConfigError(
            f"no policy named {name!r}; use one of {known}, or package.module:callable"
        )
    try:
        made = getattr(importlib.import_module(module_name), attribute)(**settings)
    except LengthwiseError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"policy {name!r} cannot be made with {settings} ({type(error).__name__}: {error}); "
            "correct its settings, or what it imports"
        ) from error
    if not isinstance(made, Policy):
        raise ConfigError(f"policy {name!r} is {type(made).__name__}; it must be a Policy")
    return made
