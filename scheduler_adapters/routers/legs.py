"""Legs: the parts of a request that one replica serves, and the request's state across them.

A request is one leg, unless it moves to another replica at its phase change, or its replica fails.
A later leg has the tokens of the earlier ones behind its prompt and computes their KV again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from scheduler_adapters.views import Phase, RequestView

LegKind = Literal["arrival", "phase_change", "resumed"]
Finish = Literal["stop", "length"]


class Routed(NamedTuple):
    """Mark of the router in a leg, by which a replica's report shows that the leg has arrived."""

    router: str
    number: int
    replica: str
    decided_by: str
    """"placement", or the reason of the fallback to queue lengths."""


@dataclass(kw_only=True, slots=True)
class Leg:
    """One part of a request, as the router and a replica receive it."""

    request_id: str
    kind: LegKind = "arrival"
    token_ids: Sequence[int]
    """Prompt, and the tokens generated in earlier legs."""
    prompt_tokens: int
    thinking_tokens: int = 0
    """Tokens generated so far in the reasoning phase."""
    is_thinking: bool
    max_tokens: int
    """Tokens that this leg may generate."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the client's body for the engine, such as temperature."""
    stop_token_ids: Sequence[int] = ()
    think_end: int | None = None
    """Token that ends the reasoning phase."""
    arrival_s: float
    """Arrival of the request on the gateway's monotonic clock."""
    score: float | None = None
    quantiles: tuple[tuple[float, float], ...] = ()
    current: str = ""
    """Replica in which the request has changed its phase."""
    excluded: frozenset[str] = frozenset()
    """Replicas that have failed this request."""
    gateway: str = ""
    """Name of the gateway's actor; after its death the work for it ends."""
    routed: Routed | None = None

    @property
    def generated_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_tokens

    def view(self, now_s: float) -> RequestView:
        """Return the request as a placement sees it at `now_s`."""
        return RequestView(
            self.request_id,
            0,
            self.arrival_s,
            self.prompt_tokens,
            self.score,
            quantiles=self.quantiles,
            phase=Phase.ANSWERING if self.kind == "phase_change" else Phase.WAITING,
            generated_tokens=self.generated_tokens,
            thinking_tokens=self.thinking_tokens,
            last_token_s=None if self.kind == "arrival" else now_s,
        )


class Emitted(NamedTuple):
    """Tokens of a leg. The last ones carry the reason of the end in the same message.

    Before the first one a replica sends its name, at once: it has accepted the leg.
    """

    position: int
    """Number of tokens of the context before these; the gateway thereby sees a loss."""
    token_ids: Sequence[int]
    finish: Finish | None = None


class BrokenLeg(Exception):
    """Leg that ended before its request, or whose tokens do not continue those before."""


@dataclass(slots=True)
class Generation:
    """Tokens of a request so far; each leg continues where the tokens end.

    `first` is the leg of the arrival, with the budget of the whole request.
    """

    first: Leg
    token_ids: list[int] = field(init=False)
    is_thinking: bool = field(init=False)
    thinking_tokens: int = 0
    finish: Finish | None = None
    failed: frozenset[str] = frozenset()
    """Replicas that have failed this request."""
    num_resumes: int = 0

    def __post_init__(self) -> None:
        self.token_ids, self.is_thinking = list(self.first.token_ids), self.first.is_thinking

    @property
    def generated_tokens(self) -> int:
        return len(self.token_ids) - self.first.prompt_tokens

    def leg(self, kind: LegKind, current: str = "") -> Leg:
        """Return the leg that continues the request from here."""
        done, sampling = self.generated_tokens, dict(self.first.sampling)
        if least := sampling.get("min_tokens"):
            sampling["min_tokens"] = max(0, least - done)
        return replace(
            self.first,
            kind=kind,
            token_ids=tuple(self.token_ids),
            thinking_tokens=self.thinking_tokens,
            is_thinking=self.is_thinking,
            max_tokens=self.first.max_tokens - done,
            sampling=sampling,
            current=current,
            excluded=self.failed,
            routed=None,
        )

    def accept(self, emitted: Emitted) -> int:
        """Add the tokens of a message up to the end of the request; return the number added.

        Raises BrokenLeg: tokens are missing or repeated.
        """
        before = len(self.token_ids)
        if emitted.position != before:
            raise BrokenLeg(f"tokens from {emitted.position} after {before} tokens")
        for token in emitted.token_ids:
            self.token_ids.append(token)
            if self.is_thinking:
                self.thinking_tokens += 1
                self.is_thinking = token != self.first.think_end
            if token in self.first.stop_token_ids:
                self.finish = "stop"
            elif self.generated_tokens >= self.first.max_tokens:
                self.finish = "length"
            if self.finish:
                break
        self.finish = self.finish or emitted.finish
        return len(self.token_ids) - before

    def cut(self, generated_tokens: int) -> None:
        """End the request by a stop string completed by its token of that number."""
        del self.token_ids[self.first.prompt_tokens + generated_tokens :]
        self.thinking_tokens = min(self.thinking_tokens, generated_tokens)
        self.finish = "stop"
