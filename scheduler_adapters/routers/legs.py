"""Legs: the parts of a request that one replica serves, and the request's state across them.

A request is one leg, unless it moves to another replica at a move point, or its replica fails. A
later leg has the tokens of the earlier ones behind its prompt. It computes their KV again, or pulls
it from the replica of the leg before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from scheduler_adapters.views import Phase, RequestView

LegKind = Literal["arrival", "prefilled", "phase_change", "quantum", "resumed"]
Finish = Literal["stop", "length", "paused"]
"""paused: the leg has ended at a move point, and its request has not."""


class Routed(NamedTuple):
    """Mark of the router in a leg, by which a replica's report shows that the leg has arrived."""

    router: str
    number: int
    replica: str
    decided_by: str
    """"placement", or the reason of the fallback to queue lengths."""


@dataclass(kw_only=True, slots=True)
class Leg:
    """A request on its way: whole at the gateway, one part of it at the router and at a replica."""

    request_id: str
    kind: LegKind = "arrival"
    token_ids: Sequence[int]
    """Prompt, and the tokens generated so far; at the gateway a list, as they grow."""
    prompt_tokens: int
    thinking_tokens: int = 0
    """Tokens generated so far in the reasoning phase."""
    is_thinking: bool
    max_tokens: int
    """Tokens that this leg may generate; at the gateway, those of the whole request."""
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
    """Replica in which the request has reached its move point."""
    pause_after: int | None = None
    """Tokens after which the leg pauses, with its KV kept; None: it never does."""
    pauses_at_think_end: bool = False
    """Pause behind `think_end`, with the KV kept."""
    kv: Mapping[str, Any] | None = None
    """KV of the context that the current replica keeps; None: another one computes it again."""
    excluded: frozenset[str] = frozenset()
    """Replicas that have failed this request."""
    gateway: str = ""
    """Name of the gateway's actor; after its death the work for it ends."""
    routed: Routed | None = None
    finish: Finish | None = None
    """Reason of the request's end."""
    num_resumes: int = 0
    """Failures of replicas that the request has survived."""
    num_silenced: int = 0
    """Failures without a token since the replica had accepted."""

    @property
    def generated_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_tokens

    def leg(self, kind: LegKind, current: str = "", kv: Mapping[str, Any] | None = None) -> Leg:
        """Return the leg that continues the request from here."""
        done, sampling = self.generated_tokens, dict(self.sampling)
        if least := sampling.get("min_tokens"):
            sampling["min_tokens"] = max(0, least - done)
        return replace(
            self,
            kind=kind,
            token_ids=tuple(self.token_ids),
            max_tokens=self.max_tokens - done,
            sampling=sampling,
            current=current,
            kv=kv,
            routed=None,
        )

    def accept(self, emitted: Emitted) -> int:
        """Add the tokens of a message up to the end of the request; return the number added.

        For the gateway's own request, whose tokens are a list. Raises BrokenLeg: tokens are missing
        or repeated.
        """
        assert isinstance(self.token_ids, list)
        before = len(self.token_ids)
        if emitted.position != before:
            raise BrokenLeg(f"tokens from {emitted.position} after {before} tokens")
        for token in emitted.token_ids:
            self.token_ids.append(token)
            if self.is_thinking:
                self.thinking_tokens += 1
                self.is_thinking = token != self.think_end
            if token in self.stop_token_ids:
                self.finish = "stop"
            elif self.generated_tokens >= self.max_tokens:
                self.finish = "length"
            if self.finish:
                break
        if emitted.finish != "paused":
            self.finish = self.finish or emitted.finish
        return len(self.token_ids) - before

    def cut(self, generated_tokens: int) -> None:
        """End the request by a stop string completed by its token of that number."""
        assert isinstance(self.token_ids, list)
        del self.token_ids[self.prompt_tokens + generated_tokens :]
        self.thinking_tokens = min(self.thinking_tokens, generated_tokens)
        self.finish = "stop"

    def view(self, now_s: float) -> RequestView:
        """Return the request as a placement sees it at `now_s`."""
        phase = Phase.REASONING if self.is_thinking else Phase.ANSWERING
        if self.kind in ("arrival", "resumed"):
            phase = Phase.WAITING
        return RequestView(
            self.request_id,
            0,
            self.arrival_s,
            self.prompt_tokens,
            self.score,
            quantiles=self.quantiles,
            phase=phase,
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
    kv: Mapping[str, Any] | None = None
    """KV that is kept for the next leg: how to pull it, and `lease_s`, for how long."""


class BrokenLeg(Exception):
    """Leg that ended before its request, or whose tokens do not continue those before."""


@dataclass(frozen=True, kw_only=True)
class MovePoints:
    """Points of a request at which a placement may move it.

    Without KV a leg continues over its points, and a move computes the context again. With KV it
    pauses at each of them, as an engine hands over the KV of an ended leg only.
    """

    prefill_end: bool = False
    """After the first token."""
    think_end: bool = False
    """After the reasoning phase."""
    every_tokens: int | None = None
    """After each so many generated tokens."""
    with_kv: bool = False

    def pauses(self, leg: Leg) -> Leg:
        """Return the leg with its pauses."""
        if not self.with_kv:
            return leg
        after, done = None, leg.generated_tokens
        if self.prefill_end and not done:
            after = 1
        elif self.every_tokens is not None:
            after = self.every_tokens - done % self.every_tokens
        think_end = self.think_end and leg.is_thinking
        return replace(leg, pause_after=after, pauses_at_think_end=think_end)

    def reached(self, one: Leg, before: int, was_thinking: bool) -> LegKind | None:
        """Return the kind of the next leg if a request with `before` tokens has reached a point."""
        if self.think_end and was_thinking and not one.is_thinking:
            return "phase_change"
        if self.prefill_end and not before:
            return "prefilled"
        every = self.every_tokens
        has_quantum = every is not None and one.generated_tokens // every > before // every
        return "quantum" if has_quantum else None
