"""Requests of a simulated engine: handed over, inside it, and on their way to another instance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from scheduler_adapters.timeline.columns import TimelineRecord
from scheduler_adapters.views import Phase, Rank, RequestView
from scheduler_adapters.workload.requests import Requests

if TYPE_CHECKING:
    from scheduler_adapters.simulator.engine.decode_batch import DecodeBatch

# Looked up once: an enum's member costs ten times what a global does.
_WAITING, _PREFILL, _REASONING, _ANSWERING = Phase


class SimulatedRequest(NamedTuple):
    """One request for an instance, with the output that only the engine knows."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    """Of the output tokens, those before the end of thinking."""
    score: float | None = None
    user_class: str = ""
    tbt_s: float | None = None
    score_delay_s: float = 0.0
    """From the arrival until the score is known; inf: never."""

    def view(self, number: int) -> RequestView:
        """Return the request as a policy sees it; `number` is its receive number."""
        request_id, arrival_s, prompt_tokens, _, _, score, user_class, tbt_s, _ = self
        return RequestView(request_id, number, arrival_s, prompt_tokens, score, user_class, tbt_s)


def simulated_request(requests: Requests, row: int) -> SimulatedRequest:
    """Return the request at `row`."""
    score, tbt_s = requests.score.item(row), requests.tbt_s.item(row)
    return SimulatedRequest(
        requests.request_id.item(row),
        requests.arrival_s.item(row),
        requests.prompt_tokens.item(row),
        requests.output_tokens.item(row),
        requests.reasoning_tokens.item(row),
        None if score != score else score,
        requests.user_class.item(row),
        None if tbt_s != tbt_s else tbt_s,
        requests.score_delay_s.item(row),
    )


def simulated_requests(requests: Requests) -> Iterator[SimulatedRequest]:
    """Return the requests one by one."""
    return (simulated_request(requests, row) for row in range(len(requests)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """Progress and KV that an unfinished request takes from one instance to another.

    `dataclasses.replace(carried, kv_tokens=0)` leaves the KV behind: then prompt and generated
    tokens are prefilled anew.
    """

    available_s: float = 0.0
    """When it may join the next instance: it left at the end of a step. Add what a transfer takes.
    """
    generated_tokens: int = 0
    thinking_tokens: int = 0
    kv_tokens: int = 0
    """Tokens whose keys and values it takes along."""
    preemptions: int = 0
    scheduled_s: float | None = None
    """Start of its first step; None if it has not been in one."""
    token_s: tuple[float, ...] = ()
    """When its tokens came out, here and in the instances before."""
    last_token_s: float | None = None
    queue: tuple[float, ...] | None = None
    """The policy's queue (`RequestView.enqueued_s`), and when it was entered."""
    queue_entered_s: float = 0.0
    held_blocks: int = 0
    """Still reserved in the instance that it left, until `Engine.release`."""
    reserved_blocks: int = 0
    """Reserved for it by `Engine.reserve` in the instance to which it comes."""


class RequestState:
    """A request inside the engine."""

    __slots__ = (
        "ask_at", "batch", "context", "event_at", "evicted_s", "in_prefills", "is_brought",
        "is_gone", "is_moving", "is_reasoning", "is_waiting", "joined", "joins_s", "kept_tokens",
        "last_token_s", "late_score", "offset", "other_token_s", "output_tokens", "placed_step",
        "prefill_left", "rank", "reasoning_tokens", "reserved_blocks", "row", "run_ticks",
        "stored_blocks", "version", "view",
    )  # fmt: skip

    def __init__(
        self, row: int, view: RequestView, output_tokens: int, reasoning_tokens: int
    ) -> None:
        self.row = row
        self.view = view
        self.output_tokens = output_tokens
        self.reasoning_tokens = reasoning_tokens
        self.joins_s = view.arrival_s
        """When it joins the queue here."""
        self.context = view.prompt_tokens
        """Prompt + generated tokens; in a batch stale, see `now_context`."""
        self.rank: Rank | None = None
        self.version = 0
        """Counts ranks: entries of heaps with an older one are void."""
        self.ask_at: float = inf
        """Ask again once this many tokens are generated."""
        self.is_waiting = True
        self.is_gone = False
        """Whether it has finished or was withdrawn."""
        self.prefill_left = 0
        self.kept_tokens = 0
        """Tokens whose KV was still there when its prefill began; 0 but for vLLM's prefix cache."""
        self.in_prefills = False
        self.stored_blocks = 0
        """KV blocks kept outside the device, to be had back without computing them anew."""
        self.reserved_blocks = 0
        """Kept for it until it joins the queue here, and then its own."""
        self.is_brought = False
        """Whether these come from another instance; else they are in host memory."""
        self.is_moving = False
        """Whether they are being copied: away while it waits, else back."""
        self.batch: DecodeBatch | None = None
        self.is_reasoning = False
        """Whether it is in a batch and has not ended its thinking."""
        self.offset = 0
        self.joined = 0
        """The batch's counter when this request came to it."""
        self.event_at = -1
        """DecodeBatch counter at which something happens to this member next."""
        self.last_token_s: float | None = None
        self.late_score: float | None = None
        """A score that became known while it ran: used if it waits again."""
        self.placed_step = -1
        self.evicted_s = -1.0
        self.run_ticks: list[int] = []
        """First and last ticks of runs of its tokens here, but for those in its batch."""
        self.other_token_s: tuple[float, ...] = ()
        """When its tokens came out in the instances before."""

    def write_runs(self, record: TimelineRecord, ticks: Sequence[int]) -> None:
        """Record runs of its tokens: first tick, last tick, first tick, ..."""
        self.run_ticks += ticks
        record.add_runs(self.row, ticks)

    @property
    def now_context(self) -> int:
        """Prompt + generated tokens."""
        return self.context if self.batch is None else self.offset + self.batch.counter

    @property
    def next_context(self) -> int:
        """Tokens it has after the next one, while it waits."""
        return self.context if self.stored_blocks and not self.prefill_left else self.context + 1

    @property
    def computed_tokens(self) -> int:
        """Tokens of a resident, or of one with stored blocks, whose KV there is."""
        return self.now_context - (self.prefill_left or 1)

    def sync_view(self) -> RequestView:
        """Return the view, brought up to date."""
        view, batch = self.view, self.batch
        view.previous = self.rank
        if batch is None:
            generated = self.context - view.prompt_tokens
            view.last_token_s = self.last_token_s
        else:
            generated = self.offset + batch.counter - view.prompt_tokens
            view.last_token_s = batch.last_s if batch.counter > self.joined else self.last_token_s
        view.generated_tokens = generated
        if self.is_waiting or self.is_moving:
            view.phase = _WAITING
        elif self.prefill_left:
            view.phase = _PREFILL
        else:
            view.phase = _REASONING if generated < self.reasoning_tokens else _ANSWERING
        if self.reasoning_tokens:
            view.thinking_tokens = min(generated, self.reasoning_tokens)
        return view


GONE = RequestState(-1, RequestView("", -1, 0.0, 1), 1, 0)
"""In the place of every request that has left its engine, so that a large run keeps none."""
GONE.is_gone = True
GONE.version = -1


def rank_of(live: RequestState) -> Rank:
    """Return the rank in force: the batch's, where the members share one."""
    shared = None if live.batch is None else live.batch.rank
    rank = shared or live.rank
    assert rank is not None
    return rank
