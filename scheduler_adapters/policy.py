"""Policies: the interface between schedulers, which rank requests, and engines, which run them.

    class ShortestPrompt(Policy):
        name = "shortest-prompt"

        def rank(self, request, load):
            return Rank((request.prompt_tokens,))

is a whole scheduler. It runs in the simulator and in real engines unchanged, by name
(`load_policy("pars")`) or by import path (`load_policy("my_package.policies:ShortestPrompt")`).
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any

from lengthwise.errors import ConfigError, InvalidDecision, LengthwiseError
from scheduler_adapters.views import UNLIMITED, Capability, LoadView, Rank, RequestView, StepRule


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """Properties of a policy that an engine reads once, at start."""

    requires: frozenset[Capability] = frozenset()
    """Compared with the capabilities of the engine (`UnsupportedByEngine`)."""
    sees_thinking: bool = False
    """The rank differs between reasoning and answering, so the engine must detect the change."""
    is_static: bool = False
    """The rank depends only on the request's fixed fields and its phase, up to a `then`, and the
    step rule at most on the size of the KV memory. Fast simulators compute such ranks once."""
    reads_lengths: bool = False
    """The rank reads predicted lengths (`quantiles`), which simulators then derive from scores."""
    shares: Mapping[str, int] | None = None
    """Weights of user classes if clients share the service (`FairShares`); None: they do not."""


class Policy(ABC):
    """Orders the requests of one instance. Pure: no clock, randomness, I/O or per-request state."""

    name: str
    """Name in tables and messages; by default that of the class."""
    traits: Traits = Traits()
    rule: StepRule = UNLIMITED
    """Limits of every step; override `step_rule` for limits that change."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if not hasattr(cls, "name"):
            cls.name = cls.__name__
        for field in Traits.__dataclass_fields__:
            if field in vars(cls):
                raise ConfigError(
                    f"policy {cls.__name__} sets {field}, which no engine reads; "
                    f"set traits = Traits({field}=...)"
                )

    @abstractmethod
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        """Return the present urgency of `request`. Lower keys are served first.

        `request.score` is None without a prediction. Such a request needs a rank too;
        `request.median_score` is a fair one.
        """

    def step_rule(self, load: LoadView) -> StepRule:
        """Return the limits of the next step; an override is called once per engine step."""
        return self.rule


class PolicyWrapper(Policy):
    """A policy around another one, with its ranks, traits and step rule; override what differs.

    The name is that of the wrapped policy and `suffix`.
    """

    def __init__(self, policy: Policy, *, suffix: str = "") -> None:
        self.policy = policy
        self.name = policy.name + suffix
        self.traits = policy.traits

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return self.policy.rank(request, load)

    def step_rule(self, load: LoadView) -> StepRule:
        return self.policy.step_rule(load)


def ask_rank(policy: Policy, request: RequestView, load: LoadView) -> Rank:
    """Return `policy.rank(...)`, checked, for engines.

    Raises:
        InvalidDecision: the policy raised, a key holds no number (None, NaN, text), or the rank is
            valid for no token. Later ranks (`then`) are checked as well.
    """
    try:
        rank = policy.rank(request, load)
    except InvalidDecision:  # of a wrapper that calls this function
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}; correct its rank()"
        raise _failed(policy, f"rank request {request.request_id!r}", why) from error
    try:
        one = rank
        while True:
            # Every rank passes here, so `flaw_of` is called for those that fail only.
            for number in one.key + (one.evict_key or ()):
                if not number <= inf:
                    raise ValueError(f"{number} is not in order")
            if not one.valid_tokens > 0:
                raise ValueError("valid for no token")
            if not (one.valid_until_started == inf or one.then is not None):
                raise ValueError("no rank after its last admission")
            if one.then is None or one.then.key is one.key:  # SLAI's: one for every token
                break
            one = one.then
    except Exception as error:
        raise _failed(policy, f"rank request {request.request_id!r}", flaw_of(rank)) from error
    return rank


def flaw_of(rank: object) -> str:
    """Return the flaw of a rank and its correction; empty for a valid rank."""
    if not isinstance(rank, Rank):
        return f"rank() returned {rank!r}; return a Rank"
    evict_key = () if rank.evict_key is None else rank.evict_key
    for name, key in (("key", rank.key), ("evict_key", evict_key)):
        if not isinstance(key, tuple):
            return f"{name} is {key!r}; make it a tuple of numbers"
        for number in key:
            if number is None:
                return f"{name} holds None; rank a request without a score by its median_score"
            if not _is_number(number):
                return f"{name} holds {number!r}; use numbers, and no NaN"
    for name in ("lane", "valid_until_s", "valid_tokens", "valid_until_started"):
        if not _is_number(getattr(rank, name)):
            return f"{name} is {getattr(rank, name)!r}; use a number, and no NaN"
    if not rank.valid_tokens > 0:
        return f"valid_tokens is {rank.valid_tokens}; use 1 or more"
    if rank.valid_until_started < inf and rank.then is None:
        return f"valid_until_started is {rank.valid_until_started}; set `then`, the rank after it"
    return "" if rank.then is None else flaw_of(rank.then)


def _is_number(number: object) -> bool:
    return isinstance(number, Real) and number == number


def _failed(policy: Policy, to_do: str, why: str) -> InvalidDecision:
    return InvalidDecision(f"policy {describe(policy)} failed to {to_do}: {why}")


def describe(policy: Policy) -> str:
    """Return the name of a policy for a message; a user's policy with its import path."""
    made = type(policy)
    path = f"{made.__module__}:{made.__qualname__}"
    return f"{policy.name!r}" + ("" if path.startswith("scheduler_adapters.") else f" ({path})")


def ask_rule(policy: Policy, load: LoadView) -> StepRule:
    """Return `policy.step_rule(...)`, checked.

    Raises:
        InvalidDecision: the policy raised, or returned another object.
    """
    try:
        rule = policy.step_rule(load)
    except Exception as error:
        why = f"{type(error).__name__}: {error}; correct its step_rule()"
        raise _failed(policy, f"give the rule of step {load.step}", why) from error
    if not isinstance(rule, StepRule):
        why = f"it returned {rule!r}; return a StepRule"
        raise _failed(policy, f"give the rule of step {load.step}", why)
    return rule


POLICIES: dict[str, str] = {
    "fcfs": "scheduler_adapters.policies.fcfs:FCFS",
    "pars": "scheduler_adapters.policies.shortest_predicted:pars",
    "pars-paper": "scheduler_adapters.policies.shortest_predicted:pars_paper",
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
    "shortest-prompt": "scheduler_adapters.policies.rivals.shortest_prompt:ShortestPrompt",
    "residual-prompt": "scheduler_adapters.policies.rivals.shortest_prompt:ResidualPrompt",
    "uniboost": "scheduler_adapters.policies.rivals.uniboost:UniBoost",
    "uniboost-learned": "scheduler_adapters.policies.rivals.uniboost:LearnedUniBoost",
    "srpt": "scheduler_adapters.policies.rivals.srpt:SRPT",
    "virtual-token-counter": "scheduler_adapters.policies.fair_shares:token_counter",
}
"""Name -> import path. PARS, its baselines and the oracle differ in scores only."""


def load_policy(name: str, **settings: Any) -> Policy:
    """Make a policy by its name in `POLICIES` or by the import path `package.module:callable`.

    Raises:
        ConfigError: no such policy (the known ones are listed), or it does not take these settings.
    """
    made: Policy = load_named_class("policy", Policy, POLICIES, name, settings)
    return made


def load_named_class(
    kind: str, base: type[Any], known: Mapping[str, str], name: str, settings: Mapping[str, Any]
) -> Any:
    """Make a `base` by its name in `known` or by import path; `kind` names it in messages.

    Raises:
        ConfigError: as `load_policy` does.
    """
    module_name, _, attribute = known.get(name, name).partition(":")
    if not attribute:
        names = ", ".join(sorted(known))
        raise ConfigError(
            f"no {kind} named {name!r}; use one of {names}, or package.module:callable"
        )
    try:
        made = getattr(importlib.import_module(module_name), attribute)(**settings)
    except LengthwiseError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{kind} {name!r} cannot be made with {settings} ({type(error).__name__}: {error}); "
            "correct its settings, or what it imports"
        ) from error
    if not isinstance(made, base):
        raise ConfigError(f"{kind} {name!r} is {type(made).__name__}; it must be a {base.__name__}")
    return made
