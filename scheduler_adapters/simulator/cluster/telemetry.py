"""The view that placements have of one simulated instance: its engine, bookings, watched counts."""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np

from scheduler_adapters.placement import Watch
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import InstanceView, Phase, RequestView
from scheduler_adapters.workload.requests import Floats


class BelowLimit:
    """Counts requests that have generated fewer tokens than a limit of their own.

    A request gets one token per step at most, so it is looked at again only after as many steps as
    it lacks tokens.
    """

    def __init__(self, engine: Engine) -> None:
        self.requests, self.load = engine.requests, engine.load
        self.limits: dict[int, int] = {}
        """By row of the engine."""
        self.looks: list[tuple[int, int]] = []
        """Heap of (step, row): when to look at a request again."""

    def add(self, live: RequestState, limit: int) -> None:
        self.limits[live.row] = limit
        heappush(self.looks, (self.load.step, live.row))

    def discard(self, row: int) -> None:
        self.limits.pop(row, None)

    def count(self) -> int:
        step, looks = self.load.step, self.looks
        while looks and looks[0][0] <= step:
            _, row = heappop(looks)
            if row in self.limits:
                left = self.limits[row] - generated_tokens(self.requests[row])
                if left > 0:
                    heappush(looks, (step + left, row))
                else:
                    del self.limits[row]
        return len(self.limits)


class PrefillQueue(EngineObserver):
    """Keeps how much is to be prefilled in one engine: of those that wait, and in progress."""

    def __init__(self, engine: Engine) -> None:
        self.lives, self.load = engine.requests, engine.load
        self.step = engine.step
        self.waiting: dict[int, tuple[int, int]] = {}
        """By row the tokens, and the `InstanceView.prefill_squares`, of a request that waits."""
        self.tokens = self.squares = 0
        """Sums of these."""
        self.started: set[int] = set()
        """Rows of requests in their prefill."""
        engine.observe(self)

    def sums(self, now_s: float) -> tuple[int, int]:
        """Return tokens and squares of all that is to be prefilled.

        Chunks of a step count until it ends, though the engine has booked them.
        """
        tokens, squares = self.tokens, self.squares
        for row in self.started:
            of_one = to_prefill(self.lives[row], self.lives[row].prefill_left)
            tokens, squares = tokens + of_one[0], squares + of_one[1]
        for live, chunk in self.chunks(now_s):
            end = live.context - (live.prefill_left or 1)
            tokens, squares = tokens + chunk, squares + end**2 - (end - chunk) ** 2
        return tokens, squares

    def chunks(self, now_s: float) -> Sequence[tuple[RequestState, int]]:
        """Return the prefills of the step under way."""
        return self.step.chunks if self.load.now_s > now_s else ()

    def submitted(self, live: RequestState) -> None:
        """Note a request that was handed to the engine."""
        # What waits with KV kept outside needs the rest of its prefill at most.
        left = live.prefill_left if live.stored_blocks else live.context
        if left and not live.is_gone:
            tokens, squares = self.waiting[live.row] = to_prefill(live, left)
            self.tokens += tokens
            self.squares += squares

    def evicted(self, request: RequestView, now_s: float) -> None:
        self.started.discard(request.number)
        self.submitted(self.lives[request.number])

    def admitted(self, request: RequestView, now_s: float) -> None:
        self._begins(request.number)
        if self.lives[request.number].prefill_left:
            self.started.add(request.number)

    def _begins(self, row: int) -> None:
        tokens, squares = self.waiting.pop(row, (0, 0))
        self.tokens -= tokens
        self.squares -= squares

    def prefill_ended(self, request: RequestView, now_s: float) -> None:
        self.started.discard(request.number)

    def finished(self, request: RequestView, now_s: float) -> None:
        self.started.discard(request.number)

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        self._begins(request.number)
        self.started.discard(request.number)


def to_prefill(live: RequestState, left: int) -> tuple[int, int]:
    """Return l - p and l^2 - p^2 of a request with `left` of its l tokens to be prefilled."""
    done = live.context - left
    return left, live.context**2 - done**2


class Telemetry(EngineObserver):
    """Keeps the view of one engine. With a `watch` it also counts who thinks and who answers.

    Decisions see each other: what is on its way to the instance is booked at once.
    """

    def __init__(
        self, engine: Engine, watch: Watch | None, *, watches_prefills: bool = False
    ) -> None:
        self.engine = engine
        self.requests = engine.requests
        self.watch = watch
        self.num_booked = self.booked_blocks = self.booked_thinking = self.booked_fresh = 0
        self.thinking = BelowLimit(engine)
        self.fresh = BelowLimit(engine)
        self.answering: set[int] = set()
        """Rows of requests that have ended their thinking and have not left."""
        self.dry: list[tuple[float, int, int]] = []
        """Heap of (when the reader has read all, row, tokens) of answers without KV blocks."""
        self.prefills = PrefillQueue(engine) if watches_prefills else None
        if watch is not None:
            engine.observe(self)

    def view(self, now_s: float = inf) -> InstanceView:
        """Return the view, brought up to date; by default the step under way counts as done."""
        view = self.engine.view()
        view.num_waiting += self.num_booked
        view.booked_blocks = self.booked_blocks
        if self.watch is not None:
            view.num_thinking = self.thinking.count() + self.booked_thinking
            view.num_fresh_answering = self.fresh.count() + self.booked_fresh
            view.paced_until_s = self._paced_until_s(self.watch)
        if self.prefills is not None:
            view.prefill_tokens, view.prefill_squares = self.prefills.sums(now_s)
        return view

    def is_changing(self, now_s: float) -> bool:
        """Return whether the view will be another one when the step under way ends."""
        return self.prefills is not None and bool(self.prefills.chunks(now_s))

    def book(self, live: RequestState, blocks: int, *, sign: int = 1) -> None:
        """Book a request that is on its way here with `blocks` of KV; `sign` -1 takes it back."""
        self.num_booked += sign
        self.booked_blocks += sign * blocks
        if self.watch is None:
            return
        generated = generated_tokens(live)
        if answers(live):
            is_fresh = generated < live.reasoning_tokens + self.watch.quantum_tokens
            self.booked_fresh += sign * is_fresh
        else:
            context = live.view.prompt_tokens + generated
            self.booked_thinking += sign * (context <= self.watch.demote_above_tokens)

    def submitted(self, live: RequestState) -> None:
        """Note a request that was handed to the engine."""
        if self.prefills is not None:
            self.prefills.submitted(live)
        if self.watch is None or live.is_gone:
            return
        if answers(live):
            self._answers(live)
            if self._has_answered(live):
                self._note_dry(live, self.watch)
        else:
            limit = self.watch.demote_above_tokens + 1 - live.view.prompt_tokens
            self.thinking.add(live, limit)

    def _answers(self, live: RequestState) -> None:
        if self.watch is not None and live.row not in self.answering:
            self.answering.add(live.row)
            self.thinking.discard(live.row)
            self.fresh.add(live, live.reasoning_tokens + self.watch.quantum_tokens)

    def prefill_ended(self, request: RequestView, now_s: float) -> None:
        if request.phase is Phase.ANSWERING:
            self._answers(self.requests[request.number])

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        self._answers(self.requests[request.number])

    def finished(self, request: RequestView, now_s: float) -> None:
        self.thinking.discard(request.number)
        self.fresh.discard(request.number)
        self.answering.discard(request.number)

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        self.finished(request, now_s)

    def evicted(self, request: RequestView, now_s: float) -> None:
        live = self.requests[request.number]
        if self.watch is not None and self._has_answered(live):
            self._note_dry(live, self.watch)

    def _has_answered(self, live: RequestState) -> bool:
        is_answering = live.row in self.answering
        return is_answering and generated_tokens(live) > live.reasoning_tokens

    def _note_dry(self, live: RequestState, watch: Watch) -> None:
        dry_s = self._dry_s(live, watch)
        heappush(self.dry, (dry_s, live.row, generated_tokens(live)))

    def _dry_s(self, live: RequestState, watch: Watch) -> float:
        token_s = self.engine.token_s(live)[live.reasoning_tokens :]
        return read_all_s(np.array(token_s), watch.pace_s)

    def _first_answer_due_s(self, ttfat_s: float) -> float:
        """Return when the first reader begins to wait of those that have no token."""
        lives = (self.requests[row] for row in self.answering)
        ended_s = (
            self.engine.token_s(live)[live.reasoning_tokens - 1]
            for live in lives
            if generated_tokens(live) == live.reasoning_tokens
        )
        return min(ended_s, default=inf) + ttfat_s

    def paced_until_s(self) -> float:
        """Return when the first reader has read all there is, to be compared with later times."""
        return inf if self.watch is None else self._paced_until_s(self.watch, for_later=True)

    def _paced_until_s(self, watch: Watch, *, for_later: bool = False) -> float:
        """Return when the first reader has read all there is.

        A request of the newest step has got a token at its end, which is not before now: only
        those left out of it count, with KV blocks or without, if it is not for later.
        """
        dry, lives, load = self.dry, self.requests, self.engine.load
        while dry:
            _, row, tokens = dry[0]
            if generated_tokens(lives[row]) == tokens and not lives[row].is_gone:
                break
            heappop(dry)
        first_s = dry[0][0] if dry else inf
        if watch.ttfat_s is not None:
            first_s = min(first_s, self._first_answer_due_s(watch.ttfat_s))
        for lane in self.engine.levels:
            for batch in lane.batches:
                is_newest = batch.last_tick == load.step - 1 and self.engine.step.is_steady
                if is_newest and not for_later:
                    continue  # all of it was in the step, and no part has been left out
                for live in batch.members.values():
                    last_s = batch.last_s if batch.counter > live.joined else live.last_token_s
                    is_left = for_later or last_s != load.last_step_end_s
                    if is_left and self._has_answered(live):
                        first_s = min(first_s, self._dry_s(live, watch))
        return first_s


def generated_tokens(live: RequestState) -> int:
    return live.now_context - live.view.prompt_tokens


def answers(live: RequestState) -> bool:
    """Return whether a request has ended its thinking, or its prefill if it does not think."""
    return generated_tokens(live) >= max(1, live.reasoning_tokens)


def read_all_s(token_s: Floats, pace_s: float) -> float:
    """Return when a reader has read tokens that came at `token_s` (K,), K >= 1.

    One token takes `pace_s`, from its coming or from the end of the one before: this is
    u_K + pace_s of PASCAL's pacer, u_j = max(g_j, u_(j-1) + pace_s).
    """
    number = np.arange(len(token_s))
    return float((token_s - number * pace_s).max() + len(token_s) * pace_s)
