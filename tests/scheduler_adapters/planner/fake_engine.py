"""An engine in plain Python that keeps memory and emits tokens, and runs the steps of a planner."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler_adapters.planner.engine_view import EngineView
from scheduler_adapters.planner.planner import Planner
from scheduler_adapters.planner.ranked_queue import RankedQueue, RankedRequest
from scheduler_adapters.planner.request_annotations import annotations_of
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.policy import Policy
from scheduler_adapters.workload.requests import Requests
from tests.scheduler_adapters.engines.decisions import Clock, Steps
from tests.scheduler_adapters.simulator.prefix_cache import PrefixCache, Shared

THINK_END = (7, 9)


@dataclass(eq=False, kw_only=True)
class FakeRequest:
    """A request inside the engine."""

    row: int
    prompt_tokens: int
    answer: list[int]
    """All tokens of its answer; `output` holds those generated so far."""
    lengthwise: RankedRequest
    output: list[int] = field(default_factory=list)
    computed: int = 0


class FakeEngine(EngineView[FakeRequest]):
    """One engine under a policy, and the view of it for its planner."""

    shares = False
    """True if requests share blocks."""

    def __init__(
        self,
        policy: Policy,
        *,
        seats: int,
        budget: int,
        blocks: int,
        block_tokens: int,
        watermark_fraction: float = 0.0,
        whole_prompts: bool = False,
        chunk_limit: int | None = None,
        priorities: Sequence[int] | None = None,
    ) -> None:
        self.priorities = priorities
        self.whole_prompts, self.chunk_limit, self.blocked = whole_prompts, chunk_limit, set[int]()
        self.max_num_seqs, self.max_tokens = seats, budget
        self.block_tokens, self.total_blocks = block_tokens, blocks
        self.watermark_blocks = int(watermark_fraction * blocks)
        self.clock = Clock()
        self.running: list[FakeRequest] = []
        by_priority = priorities is not None
        self.tracker = RequestTracker(
            policy, self.clock, by_priority=by_priority, think_end=THINK_END
        )
        self.queue: RankedQueue[FakeRequest] = RankedQueue(self.tracker.shares)
        self.planner = Planner(self.tracker, self, self.queue)

    def output(self, item: FakeRequest) -> list[int]:
        return item.output

    def computed(self, item: FakeRequest) -> int:
        return item.computed

    def context(self, item: FakeRequest) -> int:
        return item.prompt_tokens + len(item.output)

    def free_blocks(self) -> int:
        return self.total_blocks - sum(-(-i.computed // self.block_tokens) for i in self.running)

    def max_chunk(self) -> int | None:
        return self.chunk_limit

    def is_blocked(self, item: FakeRequest, admissions: Sequence[FakeRequest]) -> bool:
        return item.row in self.blocked

    def evict(self, item: FakeRequest) -> bool:
        self.running.remove(item)
        self.drop(item)
        item.computed = 0
        self.planner.residents.left(item)
        self.tracker.requeue(
            item.lengthwise,
            generated_tokens=len(item.output),
            preemptions=item.lengthwise.view.preemptions + 1,
        )
        self.queue.add(item)
        return True

    def hits(self, row: int, context: int) -> int:
        """Prompt tokens that are cached."""
        return 0

    def start(self, item: FakeRequest, budget: int) -> bool:
        """Return whether an admission can start with the rest of a step."""
        return True

    def hold(self, item: FakeRequest) -> None:
        """Take the blocks of what is computed."""

    def drop(self, item: FakeRequest) -> None:
        """Free all blocks."""

    def serve(self, requests: Requests) -> Steps:
        """Serve the requests as they arrive; return the steps."""
        steps: Steps = []
        added = 0
        while added < len(requests) or self.running or len(self.queue):
            if not (self.running or len(self.queue)):
                self.clock.now_s = max(self.clock.now_s, float(requests.arrival_s[added]))
            while added < len(requests) and requests.arrival_s[added] <= self.clock():
                self._submit(requests, added)
                added += 1
            steps.append(self._step())
        return steps

    def _submit(self, requests: Requests, row: int) -> None:
        size, thinks = int(requests.output_tokens[row]), int(requests.reasoning_tokens[row])
        marker = list(THINK_END)[-thinks:] if thinks else []
        answer = [3] * (thinks - len(marker)) + marker + [5] * (size - thinks)
        tracked = self.tracker.track(
            str(row),
            age_s=self.clock() - float(requests.arrival_s[row]),
            prompt_tokens=int(requests.prompt_tokens[row]),
            carried=annotations_of(requests, row),
            priority=self.priorities[row] if self.priorities else 0,
            prompt=() if thinks else (3, *THINK_END, 3),
            cached_tokens=self.hits(row, int(requests.prompt_tokens[row])),
        )
        size = tracked.view.prompt_tokens
        self.queue.add(FakeRequest(row=row, prompt_tokens=size, answer=answer, lengthwise=tracked))

    def _step(self) -> dict[int, int]:
        """Run the planned step: residents first, each with as many tokens as it can get."""
        started_s = self.tracker.begin_step(self.queue)
        plan = self.planner.plan()
        assert plan is not None
        self.running.sort(key=lambda item: item is plan.last)
        shown = [item for item in self.running if item not in plan.left_out]
        budget, ran = plan.num_tokens, dict[FakeRequest, int]()
        for item in [*shown, *plan.admitted]:
            if item in plan.admitted and not self.start(item, budget):
                break
            limit = budget if plan.chunk is None else min(budget, plan.chunk)
            size = min(self.context(item) - item.computed, limit)
            assert size, "a planned request found no token left"
            ran[item] = size
            budget -= size
            item.computed += size
            self.hold(item)
        assert ran, "the plan is empty"
        assert budget == 0 or self.shares, "the plan has more tokens than are taken"
        for item in [item for item in plan.admitted if item in ran]:
            self.queue.remove(item.lengthwise.view.number)
            if self.tracker.shares is not None:
                self.tracker.shares.starts(item.lengthwise.view, item.output.__len__)
                if not item.lengthwise.view.preemptions:
                    self.tracker.shares.hit(item.lengthwise.view, item.computed - ran[item])
            self.running.append(item)
            self.planner.residents.admitted(item)
        assert self.free_blocks() >= 0, "the plan takes more blocks than there are"
        self.clock.step(sum(ran.values()))
        self.tracker.end_step(started_s)
        for item in ran:
            if item.computed == self.context(item):
                item.output.append(item.answer[len(item.output)])
            if len(item.output) == len(item.answer):
                if self.tracker.shares is not None:
                    self.tracker.shares.leaves(item.lengthwise.view)
                self.running.remove(item)
                self.drop(item)
                self.planner.residents.left(item)
        self.planner.residents.step_ended()
        return {item.row: size for item, size in ran.items()}


class CachingEngine(FakeEngine):
    """An engine whose requests share the blocks of a common beginning."""

    shares = True

    def __init__(self, policy: Policy, *, shared: Shared, **limits: Any) -> None:
        self.cache = PrefixCache(limits["blocks"], limits["block_tokens"], shared)
        super().__init__(policy, **limits)

    def hits(self, row: int, context: int) -> int:
        return context - self.cache.need(row, context)[0]

    def need(self, item: FakeRequest, more: int = 0) -> tuple[int, int]:
        return self.cache.need(item.row, self.context(item), more)

    def freed(self, items: Sequence[FakeRequest], hit_by: FakeRequest | None = None) -> int:
        rows = [item.row for item in items]
        if hit_by is None:
            return self.cache.freed(rows)
        return self.cache.freed(rows, hit_by.row, self.context(hit_by))

    def free_blocks(self) -> int:
        return len(self.cache.free)

    def start(self, item: FakeRequest, budget: int) -> bool:
        context = self.context(item)
        if not budget or self.need(item)[1] > self.free_blocks():
            return False
        item.computed = self.cache.start(item.row, context)
        return True

    def hold(self, item: FakeRequest) -> None:
        self.cache.extend(item.row, item.computed)

    def drop(self, item: FakeRequest) -> None:
        self.cache.drop(item.row)
