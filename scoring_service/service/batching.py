"""Micro-batching: clients in turn, by predicted compute, in batches where these cost less.

Runner threads, one for each core, take prompts off the queue; a callback delivers each result. So
a busy service wakes no thread for a prompt. Of one client the earliest deadline is first. Prompts
of a cancelled call, and prompts whose deadline cannot be met, are dropped uncomputed. A prompt that
would wait longer than its deadline allows is refused at once, with the time to wait.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lengthwise.errors import ScoringError, ScoringTimeout, ServiceOverloaded
from scoring_service.ranker.model import RankerModel
from scoring_service.shares import NOBODY, Client, Entry, FairQueue

_LOOKAHEAD: Final = 32
"""Queued prompts considered for a batch: the queue is not ordered by length."""
_MAX_DELAY: Final = 1.25
"""Longest run with prompts of other clients / run of the prompt in turn alone."""
_SMOOTHING: Final = 0.05
"""Weight of one run in the estimate of `MicroBatcher.slowdown`."""
_HEADROOM: Final = 0.2
"""Fraction of a call's time kept free of waiting, for the network and for prediction errors.

Under a lasting overload every admitted prompt waits as long as admission permits. Without this
reserve all of them would be slightly late."""
_NOT_YET: Final = ScoringError("the prompt has not been scored yet")
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Call:
    """One call: its deadline and its jobs. Only the batcher uses more than `cancel`."""

    deadline_s: float
    """Instant on the batcher's clock after which the results are useless."""
    client: Client = NOBODY
    owners: Sequence[Client] = ()
    """Clients of the prompts one by one, where they have several."""
    cancelled: bool = False
    batcher: MicroBatcher | None = None
    jobs: list[Job] = field(default_factory=list)
    """Jobs without a result."""

    def cancel(self) -> None:
        """Drop the jobs that are not yet running."""
        self.cancelled = True
        if self.batcher is not None and self.jobs:
            self.batcher.drop(self)


@dataclass(slots=True, eq=False)
class Job:
    """One tokenized prompt to score."""

    model: RankerModel
    ids: Sequence[int]
    call: Call
    on_result: Callable[[Job], object]
    """Called once with the finished job, on any thread; it must be short and must not raise."""
    client: Client | None = None
    """None: the call's."""
    cost_s: float = field(init=False)
    entry: Entry[Job] | None = None
    """Its place in the queue, from then on."""
    queued_at_s: float = 0.0
    queue_s: float = 0.0
    taken_at_s: float = 0.0
    infer_s: float = 0.0
    result: float | ScoringError = _NOT_YET

    def __post_init__(self) -> None:
        self.cost_s = self.model.costs.predict_s(1, len(self.ids))


class MicroBatcher:
    """Runs the jobs of many calls, at most `num_runners` at a time. Threads share it.

    There is one permit for each model run that may take place at once; a working runner holds one.
    Of `max_queued` queued prompts each client has an equal part. Deadlines are on `clock`.
    """

    def __init__(
        self,
        *,
        num_runners: int,
        max_queued: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._max_queued = max_queued
        self._num_runners = num_runners
        self._lock = threading.Lock()
        self._free = num_runners
        self._num_waking = 0
        """Runners that hold a permit and have not taken a prompt yet."""
        self._queue = FairQueue[Job]()
        self._running_s = 0.0
        self.slowdown = 1.0
        """Time that recent runs held a permit / their time in the cost table."""
        self.counts: Counter[str] = Counter()
        """Prompts, runs and tokens since the start, by the names of their metrics."""
        self._idle_runners: list[threading.Lock] = []
        for _ in range(num_runners):
            awake = threading.Lock()
            awake.acquire()
            self._idle_runners.append(awake)
            threading.Thread(target=self._work, args=(awake,), name="runner", daemon=True).start()

    def submit(self, jobs: Sequence[Job], call: Call) -> None:
        """Queue the jobs of a call; one that would be late gets `ServiceOverloaded` at once."""
        refused: list[Job] = []
        with self._lock:
            call.batcher = self
            for job in jobs:
                client = job.client or call.client
                job.result = self._refusal(client, call.deadline_s, job.cost_s) or _NOT_YET
                if job.result is not _NOT_YET:
                    refused.append(job)
                    continue
                call.jobs.append(job)
                job.queued_at_s = self._clock()
                job.entry = self._queue.push(client, job, job.cost_s, call.deadline_s)
            self.counts["refused_prompts"] += len(refused)
            for _ in range(min(self._free, self.num_queued - self._num_waking)):
                self._free -= 1
                self._num_waking += 1
                self._idle_runners.pop().release()
        _deliver(refused)
        if call.cancelled:  # Perhaps before `call.batcher` was set.
            self.drop(call)

    def drop(self, call: Call) -> None:
        """Drop the jobs of `call`: each one without a result gets `ScoringTimeout`."""
        with self._lock:
            dropped, call.jobs = call.jobs, []
            for job in dropped:
                if job.entry is not None and job.entry.waits:
                    self._queue.leave(job.entry)
                    self.counts["expired_prompts"] += 1
                job.result = too_late()
        _deliver(dropped)

    def refuse_early(self, call: Call) -> ServiceOverloaded | None:
        """Return the refusal of every prompt of one client's call, whatever its length, or None."""
        if call.owners or self._free > self.num_queued:
            return None
        with self._lock:
            refusal = self._refusal(call.client, call.deadline_s, 0.0)
            self.counts["refused_prompts"] += refusal is not None
            return refusal

    @property
    def num_queued(self) -> int:
        return self._queue.all.num

    def predicted_wait_s(self, client: Client | None = None, deadline_s: float = math.inf) -> float:
        """Predicted wait of a new prompt for a permit, seconds; None: behind the whole queue."""
        if self._free > self.num_queued:
            return 0.0
        queue = self._queue
        ahead_s = queue.all.cost if client is None else queue.ahead(client, deadline_s)
        return (ahead_s + self._running_s) / self._num_runners * self.slowdown

    # Below, all but `_work` and `_execute` are called with the lock held.

    def _refusal(
        self, client: Client, deadline_s: float, cost_s: float
    ) -> ServiceOverloaded | None:
        if not self._queue.fits(client, self._max_queued):
            return ServiceOverloaded(
                f"{self.num_queued} prompts are queued, the most there may be; try again later",
                retry_after_s=self.predicted_wait_s(),
            )
        left_s = (1 - _HEADROOM) * (deadline_s - self._clock()) - cost_s * self.slowdown
        # The whole queue is an upper bound, cheaper to compute than its more urgent part.
        if self.predicted_wait_s() <= left_s:
            return None
        wait_s = self.predicted_wait_s(client, deadline_s)
        if wait_s <= max(left_s, 0.0):
            return None
        return ServiceOverloaded(
            f"a prompt would wait {wait_s * 1e3:.0f} ms, longer than its deadline allows; "
            "try again later or allow more time",
            retry_after_s=wait_s - max(left_s, 0.0),
        )

    def _work(self, awake: threading.Lock) -> None:
        """Loop of a runner. Awake it holds a permit, returned when the queue is empty."""
        group: Sequence[Job] = ()
        while True:
            if is_woken := not group:
                awake.acquire()
            ended: list[Job] = []
            with self._lock:
                self._num_waking -= is_woken
                if group:
                    self._note_pace(group)
                if not (group := self._next_group(ended)):
                    self._free += 1
                    self._idle_runners.append(awake)
            if group:
                results = self._execute(group)
                with self._lock:
                    self._settle(group, results, ended)
            # After the run, which the callbacks of expired jobs must not delay.
            _deliver(ended)

    def _next_group(self, ended: list[Job]) -> list[Job]:
        now_s = self._clock()
        while (entry := self._queue.pop()) is not None:
            job = entry.item
            if now_s + job.cost_s <= job.call.deadline_s and not job.call.cancelled:
                group = [job, *self._companions(entry, now_s)]
                for member in group:
                    self._running_s += member.cost_s
                job.taken_at_s = now_s
                return group
            self.counts["expired_prompts"] += 1
            _end(job, too_late(), ended)
        return []

    def _companions(self, entry: Entry[Job], now_s: float) -> list[Job]:
        """Take queued jobs that cost less together with a taken one than after it, none late."""
        job = entry.item
        costs = job.model.costs
        # Leave one queued prompt for each thread that is waking up. While a permit is free, a
        # thread is waking up for every queued prompt.
        most = min(costs.max_batch - 1, self.num_queued - self._num_waking)
        tokens, cost_s = len(job.ids), job.cost_s
        if most <= 0 or tokens > costs.max_batched_tokens:
            return []
        companions: list[Job] = []
        # Similar lengths need little padding.
        upcoming = itertools.islice(self._queue.upcoming(entry), _LOOKAHEAD)
        for waiting in sorted(upcoming, key=lambda one: abs(len(one.item.ids) - len(job.ids))):
            other = waiting.item
            if other.model is not job.model or other.call.cancelled:
                continue
            longest = max(tokens, len(other.ids))
            together_s = costs.predict_s(len(companions) + 2, longest)
            cheaper = longest <= costs.max_batched_tokens and together_s < cost_s + other.cost_s
            is_own = waiting.path[-1] is entry.path[-1]
            cheaper &= is_own or together_s <= _MAX_DELAY * job.cost_s
            if cheaper and now_s + together_s <= min(job.call.deadline_s, other.call.deadline_s):
                companions.append(other)
                self._queue.leave(waiting, is_served=True)
                tokens, cost_s = longest, together_s
            if len(companions) == most:
                break
        return companions

    def _execute(self, group: Sequence[Job]) -> Sequence[float | ScoringError]:
        """Score the jobs of a group whose deadline has not passed since they were taken."""
        started_s = self._clock()
        in_time = [job for job in group if started_s <= job.call.deadline_s]
        scores = iter(_score(in_time) if in_time else ())
        infer_s = self._clock() - started_s
        for job in in_time:
            job.infer_s = infer_s
            job.queue_s = started_s - job.queued_at_s
        return [next(scores) if job in in_time else too_late() for job in group]

    def _settle(
        self, group: Sequence[Job], results: Sequence[float | ScoringError], ended: list[Job]
    ) -> None:
        num_run = longest = 0
        for job, result in zip(group, results, strict=True):
            self._running_s -= job.cost_s
            if isinstance(result, ScoringTimeout):
                self.counts["expired_prompts"] += 1
            else:
                num_run += 1
                longest = max(longest, len(job.ids))
                self.counts["run_tokens"] += len(job.ids)
            if job in job.call.jobs:  # Otherwise it was dropped during the run.
                _end(job, result, ended)
        self.counts["model_runs"] += num_run > 0
        self.counts["run_prompts"] += num_run
        self.counts["padded_tokens"] += longest * num_run

    def _note_pace(self, group: Sequence[Job]) -> None:
        """Update `slowdown` by the time that a group held its permit, callbacks included."""
        predicted_s = group[0].cost_s
        if len(group) > 1:
            longest = max(len(job.ids) for job in group)
            predicted_s = group[0].model.costs.predict_s(len(group), longest)
        ratio = (self._clock() - group[0].taken_at_s) / predicted_s
        self.slowdown += _SMOOTHING * (min(max(ratio, 0.1), 10.0) - self.slowdown)


def _end(job: Job, result: float | ScoringError, ended: list[Job]) -> None:
    job.call.jobs.remove(job)
    job.result = result
    ended.append(job)


def _deliver(jobs: Iterable[Job]) -> None:
    for job in jobs:
        try:
            job.on_result(job)
        except Exception:
            _log.exception("the callback of a prompt failed")


def too_late() -> ScoringTimeout:
    """Return the error of a prompt whose deadline has passed or whose call was cancelled."""
    return ScoringTimeout("the deadline passed before the prompt was scored; allow more time")


def _score(group: Sequence[Job]) -> Sequence[float | ScoringError]:
    """Return the result of each job of a group; a failing group is scored job by job."""
    try:
        scores = group[0].model.score([job.ids for job in group])
        if len(scores) != len(group):
            raise ScoringError(f"the model gave {len(scores)} scores for {len(group)} prompts")
        return scores
    except ScoringError as error:
        if len(group) > 1:
            return [result for job in group for result in _score([job])]
        return [error]
    except Exception:
        _log.exception("the model failed on %d prompts", len(group))
        return [ScoringError("the model failed; the service's log says how")] * len(group)
