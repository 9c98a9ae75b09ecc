"""A score or None within a budget, always: the client for a scheduler's hot path.

    scorer = FailOpenScorer("127.0.0.1:50051", budget_s=0.05)
    score = scorer.score(prompt)            # a Score, or None: schedule this request without
    score = (await scorer.ask_async(prompt)).score

A batch holds the prompts that arrived during the previous calls; a lone prompt is sent at once.
Clients take turns, and each one may use half of the calls. The breaker opens when the service
fails; an error of a single prompt does not count.
"""

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any, Final

from lengthwise import errors
from lengthwise.errors import InvalidPrompt, ScoringError, ServiceOverloaded
from lengthwise.settings import checked
from scoring_service.client.breaker import CircuitBreaker
from scoring_service.client.channel import PLAINTEXT, ClientSecurity, Connection, Deadline
from scoring_service.client.codec import Score, read_batch, write_batch
from scoring_service.proto.status import CLIENT_KEY

SILENT_S: Final = 1.0
"""Seconds without any answer after which time-outs count as failures."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A score, or the reason for its absence."""

    score: Score | None
    outcome: str
    """"scored"; without a score "breaker_open", "timeout", "overloaded", "unavailable",
    "invalid_prompt", "error", or "cancelled" by the caller."""
    retry_s: float = 0.0
    """Seconds before which the same question has the same answer."""


@dataclass(slots=True)
class _Waiter:
    prompt: str
    client: str
    deadline_s: float
    future: Future[Answer] = field(default_factory=Future)


class FailOpenScorer(Connection):
    """Combines concurrent prompts into batches; returns None for a score that is not in time.

    Threads and event loops may share it. Closing it answers the waiting prompts with None. Errors
    of the service or of a prompt are not raised but counted in `counts`.

    Args:
        target: HOST:PORT or any gRPC target.
        budget_s: longest wait for a score, seconds.
        target_model: model whose response lengths `Score.expected_tokens` estimates; None: none.
        max_batch_prompts: most prompts per call to the service.
        max_in_flight: calls to the service at once with prompts of one client; twice as many in
            all.
        breaker: circuit breaker; None: one with its defaults.
        security: TLS and token; the default is plaintext.

    Raises:
        ConfigError: no target, or a budget that gRPC cannot keep.
    """

    @checked
    def __init__(
        self,
        target: str,
        *,
        budget_s: Deadline = 0.05,
        target_model: str | None = None,
        max_batch_prompts: int = 32,
        max_in_flight: int = 4,
        breaker: CircuitBreaker | None = None,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        super().__init__(target, timeout_s=budget_s, target_model=target_model, security=security)
        self._max_batch_prompts = max_batch_prompts
        self._max_in_flight = max_in_flight
        self._breaker = breaker or CircuitBreaker()
        self._lock = threading.RLock()
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        """Waiting prompts by client, the next one in turn first."""
        self._calls: Counter[str] = Counter()
        """Calls in flight by client of their prompts."""
        self._in_flight = 0
        self._called_s = 0.0
        """Instant of the first call after the last answer."""
        self._answered_s = 0.0
        self._silence_s = 0.0
        """Longest time between recent answers, while calls were in flight."""
        self.counts: Counter[str] = Counter()
        """Number of answers by `Answer.outcome`."""

    def score(self, prompt: str) -> Score | None:
        """Return the score, or None within `budget_s`."""
        waiter = self._submit(prompt)
        try:
            return waiter.future.result(max(0.0, waiter.deadline_s - time.monotonic())).score
        except TimeoutError:
            return self._answer(waiter, None, "timeout").score

    async def ask_async(self, prompt: str, client: str = "") -> Answer:
        """Return a score, or the reason for its absence; `client` is the one to take turns for."""
        waiter = self._submit(prompt, client)
        future = asyncio.wrap_future(waiter.future)
        try:
            left_s = max(0.0, waiter.deadline_s - time.monotonic())
            return await asyncio.wait_for(asyncio.shield(future), left_s)
        except TimeoutError:
            return self._answer(waiter, None, "timeout")
        except asyncio.CancelledError:  # then the prompt is not sent if it is still waiting
            self._answer(waiter, None, "cancelled")
            raise

    def out_of_time(self) -> None:
        """Count a failure of the service if it has answered no call for `SILENT_S`.

        For a caller that continues without a score while its request is still in flight.
        """
        if time.monotonic() - max(self._called_s, self._answered_s) >= SILENT_S:
            self._breaker.failure()
        else:
            self._breaker.unsure()

    @property
    def away_s(self) -> float | None:
        """Seconds in which the breaker permits no call; 0: a trial call; None: all calls."""
        return self._breaker.open_for_s

    async def answers_within(self, seconds: float) -> bool:
        """Wait as long; return whether no more time passes between answers of the service."""
        begun_s = time.monotonic()
        await asyncio.sleep(seconds)
        return self._answered_s >= begun_s and self._silence_s <= seconds and not self.away_s

    def _submit(self, prompt: str, client: str = "") -> _Waiter:
        waiter = _Waiter(prompt, client, time.monotonic() + self._timeout_s)
        if not self._breaker.allow():
            self._answer(waiter, None, "breaker_open")
            return waiter
        with self._lock:
            self._waiting.setdefault(client, deque()).append(waiter)
        self._send_next()
        return waiter

    def _answer(self, waiter: _Waiter, score: Score | None, why: str) -> Answer:
        """Answer a prompt unless it is answered; return its answer."""
        with self._lock:
            if not waiter.future.done():
                self.counts[why] += 1  # before the caller continues
                waiter.future.set_result(Answer(score, why))
        return waiter.future.result()

    def _send_next(self) -> None:
        with self._lock:
            is_full = self._in_flight >= 2 * self._max_in_flight
            if batch := [] if is_full else self._take_batch():
                self._begin_call(batch)
        if batch:
            self._send(batch)

    def _begin_call(self, batch: list[_Waiter]) -> None:
        self._in_flight += 1
        self._calls.update({waiter.client for waiter in batch})
        if self._called_s <= self._answered_s:
            self._called_s = time.monotonic()

    def _take_batch(self) -> list[_Waiter]:
        """Take prompts of the clients in turn, of each one that may have another call."""
        batch: list[_Waiter] = []
        now_s = time.monotonic()
        turns = deque(c for c in self._waiting if self._calls[c] < self._max_in_flight)
        while turns and len(batch) < self._max_batch_prompts:
            client = turns.popleft()
            theirs = self._waiting[client]
            waiter = theirs.popleft()
            if theirs:
                self._waiting.move_to_end(client)
                turns.append(client)
            else:
                del self._waiting[client]
            if waiter.deadline_s > now_s and not waiter.future.done():
                batch.append(waiter)
            elif self._answer(waiter, None, "timeout").outcome == "cancelled":
                self._breaker.unsure()
            else:
                self.out_of_time()
        return batch

    def _send(self, batch: list[_Waiter]) -> None:
        left_s = max(waiter.deadline_s for waiter in batch) - time.monotonic()
        try:
            request = write_batch([waiter.prompt for waiter in batch], self._target_model)
            options = self._options(max(left_s, 0.0))
            if any(waiter.client for waiter in batch):
                options["metadata"] += ((CLIENT_KEY, _names(batch)),)
            with self._errors():
                rpc = self._stub.ScoreBatch.future(request, **options)
        except ScoringError as error:
            self._landed(batch, error)
            return
        rpc.add_done_callback(partial(self._ended, batch))

    def _ended(self, batch: list[_Waiter], rpc: Any) -> None:
        outcome: list[Score | ScoringError] | ScoringError
        try:
            with self._errors():
                outcome = read_batch(rpc.result())
        except ScoringError as error:
            outcome = error
        self._landed(batch, outcome)

    def _landed(
        self, batch: list[_Waiter], outcome: list[Score | ScoringError] | ScoringError
    ) -> None:
        self._report(outcome)
        with self._lock:
            self._in_flight -= 1
            self._calls -= Counter({waiter.client for waiter in batch})
            if self._breaker.open_for_s:
                for waiter in chain.from_iterable(self._waiting.values()):
                    self._answer(waiter, None, "breaker_open")
                self._waiting.clear()
        if isinstance(outcome, InvalidPrompt) and len(batch) > 1:
            # The message as a whole was refused: send the prompts one by one to score the others.
            for waiter in batch:
                with self._lock:
                    self._begin_call([waiter])
                self._send([waiter])
            return
        results = [outcome] * len(batch) if isinstance(outcome, ScoringError) else outcome
        for waiter, result in zip(batch, results, strict=True):
            self._answer(waiter, result if isinstance(result, Score) else None, _reason(result))
        self._send_next()

    def _report(self, outcome: list[Score | ScoringError] | ScoringError) -> None:
        match outcome:
            case errors.ScoringTimeout():
                self.out_of_time()
            case (
                errors.ServiceUnavailable()
                | errors.AccessDenied()
                | ServiceOverloaded(retry_after_s=None)
            ):
                self._breaker.failure()
            case ServiceOverloaded(retry_after_s=float() as seconds):
                self._answered()
                self._breaker.pause(seconds)
            case _:  # An error of a prompt is an answer too.
                self._answered()
                self._breaker.success()

    def _answered(self) -> None:
        with self._lock:
            now_s, since_s = time.monotonic(), max(self._called_s, self._answered_s)
            # Answers to calls made together arrive together: one of them hides no silence.
            self._silence_s = max(now_s - since_s, 0.9 * self._silence_s)
            self._answered_s = now_s


def _names(batch: Sequence[_Waiter]) -> str:
    """Return names for the clients of prompts that show nothing of keys and addresses."""
    names = [blake2b(waiter.client.encode(), digest_size=8).hexdigest() for waiter in batch]
    return ",".join(names if len(set(names)) > 1 else names[:1])


def _reason(result: Score | ScoringError) -> str:
    names = {
        ServiceOverloaded: "overloaded",
        errors.ScoringTimeout: "timeout",
        errors.ServiceUnavailable: "unavailable",
        InvalidPrompt: "invalid_prompt",
    }
    return "scored" if isinstance(result, Score) else names.get(type(result), "error")
