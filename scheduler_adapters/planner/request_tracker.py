"""The requests of a real engine as its policy sees them: their views, their ranks and the load.

An engine reports the events of its requests to a `RequestTracker`. Late scores, holds and the
engine's own scoring are in `late_scores.py`, reports to observers in `engine_events.py`.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from lengthwise.errors import InvalidDecision
from scheduler_adapters.planner.capabilities import plans_steps
from scheduler_adapters.planner.engine_events import EngineEvents
from scheduler_adapters.planner.late_scores import (
    LateScore,
    LateScores,
    PromptScoring,
    ScoreHolds,
)
from scheduler_adapters.planner.ranked_queue import RankedQueue, RankedRequest
from scheduler_adapters.planner.recent_median import RecentMedian
from scheduler_adapters.planner.request_annotations import AnnotationCounts, request_key
from scheduler_adapters.policies.fair_shares import ServiceShares
from scheduler_adapters.policies.fcfs import ArrivalFallback
from scheduler_adapters.policy import Policy, ask_rank, describe
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView

_MAX_SUCCESSORS = 100
_PRIORITY_STRIDE = 2**32


class RequestTracker:
    """Keeps view and rank of each request of one engine up to date, by the engine's events.

    Args:
        by_priority: True where the engine's own priority precedes the policy's rank.
        think_end: token ids that end thinking; empty if unused.
        scoring: the engine's own ranker, for requests without another score. It scores those that
            start at once, as nothing is scarce, only if the policy ranks running requests too.
    """

    def __init__(
        self,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
        observers: Sequence[EngineObserver] = (),
        by_priority: bool = False,
        think_end: tuple[int, ...] = (),
        scoring: PromptScoring | None = None,
    ) -> None:
        self.policy = policy
        self.shares = ServiceShares.of(policy)
        self.clock = clock
        self.load = LoadView()
        self.events = EngineEvents(observers, think_end)
        self.annotation_counts = AnnotationCounts()
        self._median = RecentMedian()
        self.late_scores: LateScores[RankedRequest] = LateScores()
        self.holds: ScoreHolds | None = None
        if scoring is not None:
            scores_all = scoring.score_all or plans_steps(policy)
            self.holds = ScoreHolds(scoring, self.late_scores, self.annotation_counts, scores_all)
        self.num_expired = 0
        """Ranks that have ended in time: with a starvation guard, requests that it boosted."""
        self._by_priority = by_priority
        self._numbers = itertools.count()

    def track(
        self,
        request_id: str,
        *,
        age_s: float,
        prompt_tokens: int,
        carried: Mapping[str, Any] | None,
        priority: int = 0,
        prompt: Sequence[int] = (),
        key: str | None = None,
        limits: tuple[float, float] = (0, inf),
        cached_tokens: int = 0,
    ) -> RankedRequest:
        """Make the state of a request that arrived `age_s` seconds ago, and rank it.

        Args:
            carried: its annotations.
            prompt: its token ids. Without `scoring` the last ones are enough, which
                `EngineEvents.ends_prompt_thinking` reads.
            key: of a score that may arrive later; None: the one among the annotations, if any.
            limits: least and most output tokens, unless the annotations have these.
            cached_tokens: prompt tokens in the prefix cache.
        """
        scored_elsewhere = request_key(carried)
        key = key or scored_elsewhere
        now_s = self.load.now_s = self.clock()
        view = RequestView(
            request_id=request_id,
            number=next(self._numbers),
            arrival_s=now_s - max(0.0, age_s),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            **{"limits": limits} | self.annotation_counts.read(carried),
        )
        tracked = RankedRequest(
            view,
            priority=priority if self._by_priority else None,
            thinking_over=self.events.ends_prompt_thinking(prompt),
        )
        if view.score is None:
            if scored_elsewhere is None and self.holds is not None:
                self.holds.hold(tracked, key or str(view.number), prompt, now_s)
            elif key is not None and (late := self.late_scores.expect(key, tracked)) is not None:
                self._use_late(tracked, late)
        self._median.arrived(view)
        self.load.num_waiting += 1  # until the next step counts anew
        if self.shares is not None:
            self.shares.waits(view)
        self.set_rank(tracked, ask_rank(self.policy, view, self.load))
        self.events.tell("queued", view, now_s)
        return tracked

    def begin_step(
        self,
        *queues: RankedQueue[Any],
        num_free: int = 0,
        num_tokens: float = inf,
        is_idle: bool = False,
    ) -> float:
        """Read the scores queued since the last step and replace expired ranks in these queues.

        Returns the present time in seconds, which the load view now has too.

        Args:
            num_free: requests that could start now, by seats.
            num_tokens: prompt tokens that could be computed in this step.
            is_idle: True if no request runs.
        """
        self.load.now_s = self.clock()
        if isinstance(self.policy, ArrivalFallback) and self.policy.switch():
            for queue in queues:
                for item in list(queue):
                    queue.remove(item.lengthwise.view.number)
                    self.rerank(item.lengthwise)
                    queue.add(item)
        self._take_late(queues)
        if (holds := self.holds) is not None:
            holds.score_waiting(queues)
            for queue in queues:
                if queue.held:
                    over_s = holds.request(queue, self.load.now_s, num_free, num_tokens, is_idle)
                    self.load.now_s = self.clock()
                    self._take_late([queue])
                    for tracked in holds.over(queue, self.load.now_s if over_s is None else over_s):
                        self._requeue_held(queue, tracked)
        now_s = self.load.now_s
        for queue in queues:
            queue.num_started = self.load.num_started
            for item in queue.pop_expired(now_s):
                self.expire(item.lengthwise)
                queue.add(item)
        self.load.num_waiting = sum([len(queue.entries) + len(queue.held) for queue in queues])
        if self.shares is not None and self.shares.is_contended:
            self.shares.refresh()
        return now_s

    def admitted(self, tracked: RankedRequest, started_s: float) -> None:
        """Report an admission, and count a request that starts for the first time by its score."""
        if not tracked.has_started:
            tracked.has_started, counts = True, self.annotation_counts
            counts.count("unscored" if tracked.view.score is None else "scored")
            counts.at_once += tracked.unscored is not None
        self.events.admitted(tracked, started_s)

    def started(self, view: RequestView) -> None:
        """Count a waiting request that became resident."""
        self.load.num_started += 1
        view.admission_number = self.load.num_started

    def end_step(self, started_s: float) -> None:
        """Count a step that began at `started_s` and has ended now."""
        load = self.load
        # Asynchronous engines begin a step before the one before has ended.
        began_s = max(started_s, load.last_step_end_s)
        load.now_s = load.last_step_end_s = self.clock()
        load.step += 1
        load.mean_step_s += (load.now_s - began_s - load.mean_step_s) / load.step

    def requeue(self, tracked: RankedRequest, *, generated_tokens: int, preemptions: int) -> None:
        """Rank a resident that has lost its blocks and waits again."""
        view = tracked.view
        view.phase = Phase.WAITING
        view.generated_tokens = generated_tokens
        view.preemptions = preemptions
        if self.shares is not None:
            self.shares.waits(view)
        if self.holds is not None:
            self.holds.score(tracked)
        self.rerank(tracked)
        self.events.tell("evicted", view, self.load.now_s)

    def finished(self, tracked: RankedRequest, output_tokens: int) -> None:
        """Count the length of an output that has ended."""
        self._median.finished(tracked.view, output_tokens)

    # Ranks.

    def rerank(self, tracked: RankedRequest) -> None:
        """Replace the rank of a request after an event, unless the rank is sticky."""
        if (late := tracked.late_score) is not None and tracked.view.phase is Phase.WAITING:
            self._use_late(tracked, late)
            self._median.arrived(tracked.view)
            if late.reason:  # a score in place of its own
                tracked.view.median_score = late.score
        if not tracked.rank.sticky:
            self.set_rank(tracked, ask_rank(self.policy, tracked.view, self.load))

    def expire(self, tracked: RankedRequest) -> None:
        """Replace a rank that has ended in time by its successor, or by a new one."""
        self.num_expired += 1
        for _ in range(_MAX_SUCCESSORS):
            rank = tracked.rank.then
            self.set_rank(tracked, rank or ask_rank(self.policy, tracked.view, self.load))
            is_over = tracked.rank.valid_until_started <= self.load.num_started
            if tracked.rank.valid_until_s > self.load.now_s and not is_over:
                return
        raise InvalidDecision(
            f"policy {self.policy.name!r} keeps returning ranks that have ended "
            f"(valid_until_s {tracked.rank.valid_until_s} at {self.load.now_s} s); "
            "return a later time, or none"
        )

    def set_rank(self, tracked: RankedRequest, rank: Rank) -> None:
        """Set the rank that the policy made for a request or for its group.

        Raises InvalidDecision for a lane that does not fit beside the engine's own priority.
        """
        tracked.view.previous = tracked.rank = rank
        if (priority := tracked.priority) is not None:
            if not (isinstance(rank.lane, int) and -(2**31) <= rank.lane < 2**31):
                raise InvalidDecision(
                    f"policy {describe(self.policy)} ranked request {tracked.view.request_id!r} in "
                    f"lane {rank.lane!r}; under the engine's own priority use whole numbers from "
                    "-2**31 to 2**31 - 1"
                )
            key: Any = (rank.key, tracked.view.arrival_s)
            # `then` stays as it is: it is set here too, once this rank has ended.
            tracked.rank = rank._replace(
                lane=priority * _PRIORITY_STRIDE + rank.lane,
                key=key,
                evict_key=None if rank.evict_key is None else (priority, *rank.evict_key),
            )
        tracked.rerank_at_tokens = tracked.view.generated_tokens + rank.valid_tokens

    # Scores that arrive while their requests wait or run.

    def _take_late(self, queues: Iterable[RankedQueue[Any]]) -> None:
        for tracked, late in self.late_scores.take() if self.late_scores.inbox else ():
            if late.reason:
                self.annotation_counts.count(late.reason)
            if late.score is not None:
                # A resident uses the score only when it waits again.
                tracked.late_score = late
            for queue in queues:
                self._requeue_held(queue, tracked)

    def _requeue_held(self, queue: RankedQueue[Any], tracked: RankedRequest) -> None:
        """Rank a request anew where it waits, and hold it no longer."""
        if (item := queue.remove(tracked.view.number)) is not None:
            is_held, has_score = tracked.held_until_s > -inf, tracked.late_score is not None
            if is_held and not has_score:
                self._median.arrived(tracked.view)  # scores that arrived meanwhile count
            self.annotation_counts.late += has_score and not (is_held or tracked.has_started)
            tracked.held_until_s = -inf
            self.rerank(tracked)
            self.events.tell("scored", tracked.view, self.load.now_s)
            queue.add(item)

    def _use_late(self, tracked: RankedRequest, late: LateScore) -> None:
        view, tracked.late_score = tracked.view, None
        view.score, view.quantiles = None if late.reason else late.score, late.quantiles
