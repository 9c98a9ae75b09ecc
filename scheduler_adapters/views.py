"""The vocabulary of policies: views of requests and load come in, ranks and step rules go out.

An engine keeps one `RequestView` per request up to date and hands it out; to a policy it is
read-only. No view holds the true output length: an oracle gets it as a *score* from a score source.
Times are seconds on the engine's one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from math import inf
from numbers import Integral
from typing import Literal, NamedTuple

from lengthwise.errors import ConfigError


class Phase(IntEnum):
    """Phase of a request. Models without a reasoning trace skip REASONING."""

    WAITING = 0
    PREFILL = 1
    REASONING = 2
    ANSWERING = 3


class Capability(Enum):
    """Ability of an engine that a policy may require; compared once, at start."""

    DEFER_RUNNING = "leave a running request out of a step without losing its KV blocks"
    EVICT = "take the KV blocks of a running request of the policy's choosing"
    OFFLOAD = "move the KV blocks of a request to host memory and back"
    CHUNK_LIMIT = "cap the prefill tokens of one request while others prefill too"


@dataclass(slots=True)
class RequestView:
    """One request as a policy may see it. The engine writes, the policy only reads."""

    request_id: str
    number: int
    """Receive number in this engine: the last tie-break, so equal keys are served FCFS."""
    arrival_s: float
    prompt_tokens: int
    score: float | None = None
    """Predicted length, higher = longer, any scale; None where no score could be had."""
    user_class: str = ""
    tbt_s: float | None = None
    """Target time between tokens; None where the request has none."""
    quantiles: tuple[tuple[float, float], ...] = ()
    """Predicted length as (fraction, tokens), both ascending; empty where that is not known."""
    phase: Phase = Phase.WAITING
    generated_tokens: int = 0
    thinking_tokens: int = 0
    last_token_s: float | None = None
    """End of the step that emitted the newest token (of the prefill, before there is one)."""
    admission_number: int | None = None
    """Counts admissions, resumes included; None while waiting for the first."""
    preemptions: int = 0
    previous: Rank | None = None
    """The last rank that the policy (with its wrappers) gave; None the first time."""
    queue: tuple[float, ...] | None = None
    """The queue `enqueued_s` was last asked about, and when that queue was entered."""
    queue_entered_s: float = 0.0
    median_score: float | None = None
    """Of a request without a score: the median of the scores before it, fixed at its arrival. None
    where there were none."""

    @property
    def context_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_tokens + self.generated_tokens

    def expected_tokens(self, otherwise: int) -> int:
        """Return the predicted median of its output, or `otherwise` where none is predicted."""
        known = [tokens for fraction, tokens in self.quantiles if fraction >= 0.5]
        return int(known[0]) if known else otherwise

    def enqueued_s(self, queue: tuple[float, ...], now_s: float) -> float:
        """Return when this request entered `queue`: `now_s` if it is another one than last time.

        A queue is any tuple of the policy's choosing, such as (quanta used,). The view remembers
        it, so policies that order by time of entry stay stateless.
        """
        if queue != self.queue:
            self.queue, self.queue_entered_s = queue, now_s
        return self.queue_entered_s


@dataclass(slots=True)
class LoadView:
    """The instance as a policy may see it, at the moment of asking."""

    now_s: float = 0.0
    step: int = 0
    mean_step_s: float = 0.0
    """Cumulative mean step time; 0 before the first step has ended."""
    last_step_end_s: float = 0.0
    num_waiting: int = 0
    num_prefilling: int = 0
    num_decoding: int = 0
    num_started: int = 0
    """Admissions so far, resumes included."""
    used_blocks: int = 0
    total_blocks: int = 1

    @property
    def kv_usage_fraction(self) -> float:
        """Used KV blocks / all KV blocks, in [0, 1]; weights are not counted."""
        return self.used_blocks / self.total_blocks


Role = Literal["prefill", "decode", "both"]
"""Part of their work for which an instance takes new requests."""


@dataclass(kw_only=True, slots=True)
class InstanceView:
    """One instance as a placement may see it, between two of its steps.

    The engine keeps it up to date; a placement only reads it.
    """

    instance_id: int
    now_s: float
    """End of its newest step; later than now where a step is under way."""
    used_blocks: int
    total_blocks: int
    block_tokens: int
    used_host_blocks: int = 0
    num_waiting: int = 0
    """Requests without KV blocks, those included that have been handed over and not yet seen."""
    num_prefilling: int = 0
    num_reasoning: int = 0
    """Decodes in their reasoning phase."""
    num_answering: int = 0
    """Decodes in their answering phase; all of a model that does not reason."""
    waiting_prompt_tokens: int = 0
    """Of all that wait; `stored_prompt_tokens` of these belong to requests with KV outside."""
    stored_prompt_tokens: int = 0
    brought_blocks: int = 0
    """KV that has come from other instances and waits for room here."""
    mean_step_s: float = 0.0
    """Cumulative mean step time; 0 before the first step has ended."""
    role: Role = "both"
    booked_blocks: int = 0
    """For KV that is on its way here from other instances; the requests are among the waiting."""
    num_thinking: int = 0
    """Requests that have not begun to answer, wherever their KV is. This and what follows is kept
    for placements that have a `Watch`; those above its context limit are left out."""
    num_fresh_answering: int = 0
    """Requests that answer and have not used up the watch's quantum for that."""
    paced_until_s: float = inf
    """When the first reader of an unfinished answer has no token left to read: tokens are read at
    the watch's pace as they come. Answers without a token are not counted, nor are those that got
    one in the newest step: compare it with now, not with later times."""
    num_migrating: int = 0
    """Requests that are copied from here or to here while they decode, until they have moved."""
    prefill_tokens: int = 0
    """Tokens that are still to be prefilled here, those of the step under way included. This and
    the next are kept for placements with `watches_prefills`."""
    prefill_squares: int = 0
    """Sum of l^2 - p^2 over the same requests, l the tokens of one and p those prefilled: with the
    number of tokens it gives the time of their prefills."""
    decodes: Callable[[], Sequence[RequestView]] = tuple
    """Returns the requests that decode here, made when it is called, in no order."""

    @property
    def num_requests(self) -> int:
        """All requests that are there."""
        return self.num_waiting + self.num_prefilling + self.num_reasoning + self.num_answering

    @property
    def kv_usage_fraction(self) -> float:
        """Used KV blocks / all KV blocks, in [0, 1]."""
        return self.used_blocks / self.total_blocks

    @property
    def kv_blocks(self) -> int:
        """Blocks of all KV that is here or on its way: on the device, in host memory, booked."""
        outside = self.used_host_blocks + self.brought_blocks
        return self.used_blocks + outside + self.booked_blocks

    @property
    def unstored_prompt_tokens(self) -> int:
        """Prompts that wait and have no KV yet."""
        return self.waiting_prompt_tokens - self.stored_prompt_tokens

    @property
    def free_blocks(self) -> int:
        """KV blocks that are neither used nor booked."""
        return self.total_blocks - self.used_blocks - self.booked_blocks

    @property
    def unclaimed_blocks(self) -> int:
        """Free KV blocks that no waiting prompt needs; may be below 0."""
        return self.free_blocks - self.blocks_of(self.waiting_prompt_tokens)

    def blocks_of(self, tokens: int) -> int:
        """Return the KV blocks that hold so many tokens."""
        return -(-tokens // self.block_tokens)


class Rank(NamedTuple):
    """Urgency of a request, and for how long it is valid.

    An engine fills a step lane by lane, ascending; inside a lane it serves decodes, then prefills
    in progress, then waiting requests, each by ascending key; ties end at the receive number.
    So the default rank is FCFS, and a rank `()` goes before every other key of its lane.

    An engine asks again at admission, end of prefill, end of thinking, preemption and when the
    validity ends, never otherwise: a rank that does not change costs nothing per step.

    A named tuple, because policies make many and a frozen dataclass takes four times as long.
    """

    key: tuple[float, ...] = ()
    lane: int = 0
    valid_until_s: float = inf
    valid_tokens: float = inf
    """Ask again once the request has generated this many more tokens."""
    then: Rank | None = None
    """The rank from `valid_until_s` on, where it is known already: saves asking."""
    evict_key: tuple[float, ...] | None = ()
    """When KV blocks run out the greatest goes first, of equals the latest received.

    None: it is evicted only by itself, when its own next token finds no block.
    """
    group: Hashable | None = None
    """Decodes of one group that ran the same step share one call of `Policy.rank`."""
    sticky: bool = False
    """Never ask again, whatever happens (`then` still takes effect)."""


new_rank = tuple.__new__
"""`new_rank(Rank, (...))` is a `Rank` of all its fields, in half the time of `Rank(...)`."""


@dataclass(frozen=True, slots=True)
class StepRule:
    """The shape of one engine step. The defaults are continuous batching without limits.

    None leaves the engine's own limit; a rule can only tighten it. Checked when it is made, so make
    the rules that a policy needs once, not at every step.

    Raises:
        ConfigError: a limit is not a whole number, or too small to get anything done.
    """

    max_tokens: int | None = None
    """Token budget: decodes + prefill chunks."""
    max_decodes: int | None = None
    max_prefills: int | None = None
    """Prefill chunks in the step, of admitted and of new requests."""
    max_admissions: int | None = None
    max_resident: int | None = None
    """Requests that may hold KV blocks."""
    chunk: int | None = None
    """Most prefill tokens of one request in one step."""
    mixed: bool = True
    """Whether prefill and decode may share a step; if not, the first kind placed has it alone."""
    whole_prompts: bool = False
    """Whether a prompt must be prefilled in one step; one above the budget then runs alone."""
    padded_tokens: bool = False
    """Whether prefills count as (their number) x (the longest) against the budget."""
    displace: bool = False
    """Whether a waiting request whose KV blocks are missing may evict residents with a greater
    `evict_key` (needs EVICT). For a seat alone nobody goes: it waits until one is free."""
    offload: bool = False
    """Whether what is evicted goes to host memory, to come back without being computed anew (needs
    OFFLOAD)."""

    def __post_init__(self) -> None:
        for least, names in _LEAST.items():
            for name in names:
                if (limit := getattr(self, name)) is not None:
                    require_at_least(least, **{name: limit})


_LEAST = {
    0: ("max_decodes", "max_prefills", "max_admissions"),
    1: ("max_tokens", "max_resident", "chunk"),
}
"""Zero of these leaves other work to do; zero of those would stop the engine."""


def require_at_least(least: int, **counts: object) -> None:
    """Raise `ConfigError`, by name, for a count that is not a whole number from `least` on."""
    for name, count in counts.items():
        if not isinstance(count, Integral) or count < least:
            raise ConfigError(f"{name} is {count!r}; use a whole number, {least} or more")


UNLIMITED = StepRule()
