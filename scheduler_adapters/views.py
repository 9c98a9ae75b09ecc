"""The vocabulary of policies: views of requests and load as input, ranks and step rules as output.

An engine keeps one `RequestView` per request up to date; a policy only reads it. No view holds the
true output length: an oracle gets it as a *score*. Times: seconds on the engine's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import pairwise
from math import inf
from numbers import Integral
from typing import Literal, NamedTuple

from lengthwise.errors import require

Quantiles = tuple[tuple[float, float], ...]


def are_quantiles(pairs: Quantiles) -> bool:
    """Return whether fractions rise inside (0, 1), and tokens do not fall, from 0 on."""
    shares, tokens = [0.0, *(share for share, _ in pairs), 1.0], [0.0, *(n for _, n in pairs)]
    rises = all(low < high for low, high in pairwise(shares))
    return rises and all(low <= high < inf for low, high in pairwise(tokens))


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
    PREFIX_HITS = "know the prompt tokens of an arriving request that the prefix cache holds"


@dataclass(slots=True)
class RequestView:
    """One request as seen by a policy."""

    request_id: str
    number: int
    """Receive number in this engine: the last tie-break, so equal keys are served FCFS."""
    arrival_s: float
    prompt_tokens: int
    score: float | None = None
    """Predicted length, higher = longer, any scale; None without a prediction."""
    user_class: str = ""
    tbt_s: float | None = None
    """Target time between tokens; None without a target."""
    client: str = ""
    """Name of the sender, for shares between clients."""
    quantiles: Quantiles = ()
    """Predicted length as (fraction, tokens), both ascending; empty without a prediction."""
    limits: tuple[float, float] = (0, inf)
    """Least and most tokens of output that the request itself allows; its score keeps to them."""
    cached_tokens: int = 0
    """Prompt tokens in the prefix cache at its arrival, in an engine with PREFIX_HITS."""
    phase: Phase = Phase.WAITING
    generated_tokens: int = 0
    thinking_tokens: int = 0
    last_token_s: float | None = None
    """End of the step that emitted the newest token; before the first one, of the prefill."""
    admission_number: int | None = None
    """Number of its admission, resumes included; None before the first."""
    preemptions: int = 0
    previous: Rank | None = None
    """Last rank given by the policy with its wrappers; None the first time."""
    queue: tuple[float, ...] | None = None
    """Last queue given to `enqueued_s`, entered at `queue_entered_s`."""
    queue_entered_s: float = 0.0
    median_score: float | None = None
    """For a request without a score: median of the scores before it, fixed at its arrival."""

    @property
    def context_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_tokens + self.generated_tokens

    def expected_tokens(self, otherwise: int) -> int:
        """Return the predicted median of the output, or `otherwise` without a prediction."""
        known = [tokens for fraction, tokens in self.quantiles if fraction >= 0.5]
        return int(known[0]) if known else otherwise

    def enqueued_s(self, queue: tuple[float, ...], now_s: float) -> float:
        """Return the time at which this request entered `queue`: `now_s` if the queue is new.

        A queue is any tuple chosen by the policy, such as (quanta used,). The view remembers it,
        so policies that order by time of entry stay stateless.
        """
        if queue != self.queue:
            self.queue, self.queue_entered_s = queue, now_s
        return self.queue_entered_s


@dataclass(slots=True)
class LoadView:
    """The instance as seen by a policy, at the time of the call."""

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


Role = Literal["prefill", "decode", "both"]
"""Phase of new requests that an instance serves."""


@dataclass(kw_only=True, slots=True)
class InstanceView:
    """One instance as seen by a placement, between two of its steps.

    The engine keeps it up to date; a placement only reads it.
    """

    instance_id: int
    now_s: float
    """End of its newest step, which may still be under way."""
    used_blocks: int
    total_blocks: int
    block_tokens: int
    used_host_blocks: int = 0
    num_waiting: int = 0
    """Requests without KV blocks, including requests in transfer to this instance."""
    num_prefilling: int = 0
    num_reasoning: int = 0
    """Decodes in their reasoning phase."""
    num_answering: int = 0
    """Decodes in their answering phase; all decodes of a model that does not reason."""
    waiting_prompt_tokens: int = 0
    """Prompt tokens of waiting requests; `stored_prompt_tokens` of them have KV kept outside."""
    stored_prompt_tokens: int = 0
    brought_blocks: int = 0
    """KV from other instances that waits for free blocks here."""
    mean_step_s: float = 0.0
    """Cumulative mean step time; 0 before the first step has ended."""
    role: Role = "both"
    booked_blocks: int = 0
    """Blocks for KV in transfer from other instances."""
    num_thinking: int = 0
    """Requests that have not begun to answer, wherever their KV is, with a context up to the limit
    of the placement's `Watch`. This count and the next two fields need a `Watch`."""
    num_fresh_answering: int = 0
    """Requests that answer and have not used up the watch's quantum for answers."""
    paced_until_s: float = inf
    """Earliest time at which the reader of an unfinished answer has read all its tokens, at the
    watch's pace. Requests of the newest step are left out, so compare it with the present time."""
    num_migrating: int = 0
    """Requests in a live migration from or to this instance."""
    prefilled_blocks: int = 0
    """Blocks held here by prefilled requests that have no decode instance yet."""
    prefill_tokens: int = 0
    """Tokens still to be prefilled here, including the step under way. This field and the next need
    `watches_prefills`."""
    prefill_squares: int = 0
    """Sum of l^2 - p^2 over the same requests, l tokens each, p of them prefilled. The time of
    their prefills follows from this sum and the number of tokens."""
    decodes: Callable[[], Sequence[RequestView]] = tuple
    """Returns the requests that decode here at the time of the call, in no order."""

    @property
    def num_requests(self) -> int:
        """All requests of the instance."""
        return self.num_waiting + self.num_prefilling + self.num_reasoning + self.num_answering

    @property
    def kv_blocks(self) -> int:
        """Blocks of all KV of the instance: on the device, in host memory, or in transfer."""
        return self.used_blocks + self.used_host_blocks + self.brought_blocks + self.booked_blocks

    @property
    def unstored_prompt_tokens(self) -> int:
        """Prompt tokens of waiting requests without KV."""
        return self.waiting_prompt_tokens - self.stored_prompt_tokens

    @property
    def free_blocks(self) -> int:
        """KV blocks that are neither used nor booked."""
        return self.total_blocks - self.used_blocks - self.booked_blocks

    @property
    def unclaimed_blocks(self) -> int:
        """Free KV blocks less those of all waiting prompts; may be below 0."""
        return self.free_blocks - self.blocks_of(self.waiting_prompt_tokens)

    def blocks_of(self, tokens: int) -> int:
        """Return the number of KV blocks that hold these tokens."""
        return -(-tokens // self.block_tokens)


class Rank(NamedTuple):
    """Urgency of a request, and its validity.

    An engine fills a step by ascending `lane`. Inside a lane decodes precede prefills in progress,
    and these precede waiting requests, each by ascending key. Ties end at the receive number. So
    the default rank is FCFS, and the key `()` precedes every other key of its lane.

    A rank is requested again at admission, end of prefill, end of thinking, preemption, and when
    its validity ends, never otherwise: a rank that does not change costs nothing per step.
    """

    # A named tuple, because policies make many and a frozen dataclass takes four times as long.
    key: tuple[float, ...] = ()
    lane: int = 0
    valid_until_s: float = inf
    valid_tokens: float = inf
    """Generated tokens after which the rank is requested again."""
    then: Rank | None = None
    """Rank from `valid_until_s` on, if it is known already, and from `valid_until_started` on."""
    evict_key: tuple[float, ...] | None = ()
    """Order of eviction when KV blocks run out: the greatest first, of equals the latest received.

    None: the request is evicted only when its own next token finds no block.
    """
    group: Hashable | None = None
    """Decodes of one group that ran the same step share one call of `Policy.rank`."""
    sticky: bool = False
    """Keep this rank for good (`then` still takes effect)."""
    valid_until_started: float = inf
    """Number of admissions (`LoadView.num_started`) from which on a waiting request has the rank
    `then`."""


new_rank = tuple.__new__
"""`new_rank(Rank, (...))` is a `Rank` of all its fields, in half the time of `Rank(...)`."""


@dataclass(frozen=True, slots=True)
class StepRule:
    """Limits of one engine step. The defaults are continuous batching without limits.

    None leaves the engine's own limit; a rule can only tighten it. Rules are checked when they are
    made: make them once, not at every step.

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
    """Prefill and decode may share a step; otherwise the kind placed first has it alone."""
    whole_prompts: bool = False
    """A prompt is prefilled in one step; a prompt above the budget runs alone."""
    padded_tokens: bool = False
    """Prefills count as (their number) x (the longest) against the budget."""
    displace: bool = False
    """Missing KV blocks of a waiting request are taken from residents with a greater `evict_key`
    (needs EVICT). A missing seat evicts no request."""
    offload: bool = False
    """Evicted KV is kept in host memory instead of being recomputed (needs OFFLOAD)."""

    def __post_init__(self) -> None:
        # Zero of the first leaves other work to do; zero of the second would stop the engine.
        for least, names in (
            (0, ("max_decodes", "max_prefills", "max_admissions")),
            (1, ("max_tokens", "max_resident", "chunk")),
        ):
            for name in names:
                if (limit := getattr(self, name)) is not None:
                    require_at_least(least, **{name: limit})


def require_at_least(least: int, **counts: object) -> None:
    """Raise `ConfigError` for a count that is not a whole number from `least` on."""
    for name, count in counts.items():
        holds = isinstance(count, Integral) and int(count) >= least
        require(name, repr(count), holds, f"a whole number, {least} or more")


UNLIMITED = StepRule()
