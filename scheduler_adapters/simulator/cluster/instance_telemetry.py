"""Counts of one simulated instance that a placement may ask for: prefills, answers, readers."""

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
    """Number of requests that have generated fewer tokens than a limit of their own.

    A step gives one token at most, so the next check is after as many steps as tokens are missing.
    """

    def __init__(self, engine: Engine) -> None:
        self.requests, self.load = engine.requests, engine.load
        self.limits: dict[int, int] = {}
        """Limits by row of the engine."""
        self.checks: list[tuple[int, int]] = []
        """Heap of (step of the next check, row)."""

    def add(self, state: RequestState, limit: int) -> None:
        self.limits[state.row] = limit
        heappush(self.checks, (self.load.step, state.row))

    def discard(self, row: int) -> None:
        self.limits.pop(row, None)

    def count(self) -> int:
        step, checks = self.load.step, self.checks
        while checks and checks[0][0] <= step:
            _, row = heappop(checks)
            if row in self.limits:
                left = self.limits[row] - self.requests[row].generated_tokens
                if left > 0:
                    heappush(checks, (step + left, row))
                else:
                    del self.limits[row]
        return len(self.limits)


class PrefillQueue(EngineObserver):
    """Tokens to be prefilled in one engine: of waiting requests, and of prefills in progress."""

    def __init__(self, engine: Engine) -> None:
        self.requests, self.load = engine.requests, engine.load
        self.step = engine.step
        self.waiting: dict[int, tuple[int, int]] = {}
        """Tokens and `InstanceView.prefill_squares` of each waiting request, by row."""
        self.tokens = self.squares = 0
        """Sums over the waiting requests."""
        self.started: set[int] = set()
        """Rows of requests in their prefill."""
        engine.observe(self)

    def sums(self, now_s: float) -> tuple[int, int]:
        """Return tokens and squares of all prefills; chunks of a step count until it ends."""
        tokens, squares = self.tokens, self.squares
        for row in self.started:
            of_one = to_prefill(self.requests[row], self.requests[row].prefill_left)
            tokens, squares = tokens + of_one[0], squares + of_one[1]
        for state, chunk in self.chunks(now_s):
            end = state.context - (state.prefill_left or 1)
            tokens, squares = tokens + chunk, squares + end**2 - (end - chunk) ** 2
        return tokens, squares

    def chunks(self, now_s: float) -> Sequence[tuple[RequestState, int]]:
        """Return the prefills of the step under way."""
        return self.step.chunks if self.load.now_s > now_s else ()

    def submitted(self, state: RequestState) -> None:
        """Add a request that was submitted to the engine."""
        # With KV kept outside, a request needs at most the rest of its prefill.
        whole = state.context - state.view.cached_tokens
        left = state.prefill_left if state.stored_blocks else whole
        if left and not state.is_gone:
            tokens, squares = self.waiting[state.row] = to_prefill(state, left)
            self.tokens += tokens
            self.squares += squares

    def evicted(self, request: RequestView, now_s: float) -> None:
        self.started.discard(request.number)
        self.submitted(self.requests[request.number])

    def admitted(self, request: RequestView, now_s: float) -> None:
        self._remove_waiting(request.number)
        if self.requests[request.number].prefill_left:
            self.started.add(request.number)

    def _remove_waiting(self, row: int) -> None:
        tokens, squares = self.waiting.pop(row, (0, 0))
        self.tokens -= tokens
        self.squares -= squares

    def prefill_ended(self, request: RequestView, now_s: float) -> None:
        self.started.discard(request.number)

    finished = prefill_ended

    def withdrawn(self, request: RequestView, now_s: float) -> None:
        self._remove_waiting(request.number)
        self.started.discard(request.number)


def to_prefill(state: RequestState, left: int) -> tuple[int, int]:
    """Return l - p and l^2 - p^2 of a request with `left` of its l tokens to be prefilled."""
    return left, state.context**2 - (state.context - left) ** 2


class WatchedCounts(EngineObserver):
    """Requests of one engine by the limits of a `Watch`, and the readers of their answers."""

    def __init__(self, engine: Engine, watch: Watch) -> None:
        self.engine, self.watch = engine, watch
        self.requests, self.load = engine.requests, engine.load
        self.thinking, self.fresh = BelowLimit(engine), BelowLimit(engine)
        self.dry: list[tuple[float, int, int]] = []
        """Heap of (time when all is read, row, tokens) of answers without KV blocks."""
        engine.observe(self)

    def submitted(self, state: RequestState) -> None:
        """Count a request that was submitted to the engine."""
        if state.is_gone:
            return
        if answers(state):
            self.thinking_ended(state.view, 0.0)
            self._note_dry(state)
        else:
            most_tokens = self.watch.demote_above_tokens - state.view.prompt_tokens
            self.thinking.add(state, most_tokens + 1)

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        state = self.requests[request.number]
        self.thinking.discard(state.row)
        self.fresh.add(state, state.reasoning_tokens + self.watch.quantum_tokens)

    def prefill_ended(self, request: RequestView, now_s: float) -> None:
        if request.phase is Phase.ANSWERING:
            self.thinking_ended(request, now_s)

    def finished(self, request: RequestView, now_s: float) -> None:
        self.thinking.discard(request.number)
        self.fresh.discard(request.number)

    withdrawn = finished

    def evicted(self, request: RequestView, now_s: float) -> None:
        self._note_dry(self.requests[request.number])

    def _note_dry(self, state: RequestState) -> None:
        if (tokens := state.generated_tokens) > state.reasoning_tokens:
            heappush(self.dry, (self._dry_s(state), state.row, tokens))

    def _dry_s(self, state: RequestState) -> float:
        token_s = self.engine.token_s(state)[state.reasoning_tokens :]
        return read_all_s(np.array(token_s), self.watch.pace_s)

    def paced_until_s(self, *, for_later: bool = False) -> float:
        """Return the earliest time at which a reader has read all tokens.

        By default requests of the newest step are left out: they got a token at its end, which is
        not before now. `for_later` includes them, for a comparison with later times.
        """
        dry, requests, load = self.dry, self.requests, self.load
        while dry:
            _, row, tokens = dry[0]
            if requests[row].generated_tokens == tokens and not requests[row].is_gone:
                break
            heappop(dry)
        first_s = dry[0][0] if dry else inf
        for level in self.engine.levels:
            for batch in level.batches:
                is_newest = batch.last_tick == load.step - 1 and self.engine.step.is_steady
                if is_newest and not for_later:
                    continue  # all of it was in the step, and no part has been left out
                for state in batch.members.values():
                    last_s = batch.last_s if batch.counter > state.joined else state.last_token_s
                    is_left = for_later or last_s != load.last_step_end_s
                    if is_left and state.generated_tokens > state.reasoning_tokens:
                        first_s = min(first_s, self._dry_s(state))
        return first_s


def answers(state: RequestState) -> bool:
    """Return whether a request has ended its thinking, or its prefill if it does not think."""
    return state.generated_tokens >= max(1, state.reasoning_tokens)


def count_in_transfer(
    view: InstanceView, state: RequestState, blocks: int, watch: Watch | None
) -> None:
    """Add a request in transfer with `blocks` of KV to the view of its destination.

    So each decision sees the ones before.
    """
    view.num_waiting += 1
    view.booked_blocks += blocks
    if watch is not None and answers(state):
        limit = state.reasoning_tokens + watch.quantum_tokens
        view.num_fresh_answering += state.generated_tokens < limit
    elif watch is not None:
        view.num_thinking += state.now_context <= watch.demote_above_tokens


def read_all_s(token_s: Floats, pace_s: float) -> float:
    """Return the time when a reader has read tokens emitted at `token_s` (K,), K >= 1.

    One token takes `pace_s`, from its emission or from the end of the one before: this is
    u_K + pace_s of PASCAL's pacer, u_j = max(g_j, u_(j-1) + pace_s).
    """
    return float((token_s - np.arange(len(token_s)) * pace_s).max() + len(token_s) * pace_s)
