"""The batcher: order, deadlines, refusals, and that no permit is ever lost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring_service.errors import ScoringError, ScoringTimeout, ServiceOverloaded
from scoring_service.ranker.costs import CostTable
from scoring_service.service.batching import Call, Job, MicroBatcher

ALONE = CostTable((8, 64), {1: (0.001, 0.008)})
TOGETHER = CostTable((8, 64), {1: (0.001, 0.008), 8: (0.002, 0.070)})


class FakeModel:
    """Scores a prompt with its first id; records its runs; can be held in a run."""

    def __init__(self, costs: CostTable = ALONE, run_s: float = 0.0) -> None:
        self.costs = costs
        self.runs: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.run_s = run_s
        self.at_once = self.most_at_once = 0

    def score(self, prompts):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.runs.append([prompt[0] for prompt in prompts])
        self.entered.release()
        assert self.gate.wait(60)
        time.sleep(self.run_s)
        self.at_once -= 1
        if any(prompt[0] < 0 for prompt in prompts):
            raise ScoringError("negative")
        return [float(prompt[0]) for prompt in prompts]


def ask(batcher, model, *names, tokens=8, timeout_s=60, call=None):
    call = call or Call(time.monotonic() + timeout_s)
    jobs = [Job(model, [name] * tokens, call) for name in names]
    batcher.run(jobs, call)
    return [job.result for job in jobs]


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as pool:
        yield pool


class Held:
    """A batcher with one runner that is busy with prompt 0 until `release`."""

    def __init__(self, pool, costs=ALONE, **settings):
        self.pool = pool
        self.model = FakeModel(costs)
        self.batcher = MicroBatcher(num_runners=1, **settings)
        self.model.gate.clear()
        self.results = [self.ask(0)]
        assert self.model.entered.acquire(timeout=60)

    def ask(self, *names, **options):
        before = self.batcher.num_queued
        future = self.pool.submit(ask, self.batcher, self.model, *names, **options)
        deadline_s = time.monotonic() + 60
        while self.batcher.num_queued == before and not future.done():
            if time.monotonic() > deadline_s or (self.model.runs == [[0]] and names == (0,)):
                break
            time.sleep(0.001)
        return future

    def release(self):
        self.model.gate.set()


def test_who_submits_does_not_wait():
    model = FakeModel()
    model.gate.clear()
    batcher, call, done = MicroBatcher(num_runners=1), Call(time.monotonic() + 60), []
    jobs = [Job(model, [name], call) for name in (1, 2)]
    finished = threading.Event()
    batcher.submit(jobs, call, lambda: (done.append([job.result for job in jobs]), finished.set()))
    assert done == []
    model.gate.set()
    assert finished.wait(60)
    assert done == [[1.0, 2.0]]


def test_a_refused_submission_is_told_at_once(pool):
    held = Held(pool, max_queued=1)
    waiting = held.ask(1)
    call, done = Call(time.monotonic() + 60), []
    job = Job(held.model, [2], call)
    held.batcher.submit([job], call, lambda: done.append(job.result))
    assert isinstance(done[0], ServiceOverloaded)
    held.release()
    assert waiting.result(60) == [1.0]


def test_a_listener_that_fails_stops_no_runner():
    batcher, model = MicroBatcher(num_runners=1), FakeModel()
    call = Call(time.monotonic() + 60)
    batcher.submit([Job(model, [1], call)], call, lambda: 1 / 0)
    assert ask(batcher, model, 2) == [2.0]


@pytest.mark.parametrize("scores", [None, [], [1.0, 2.0]])
def test_a_model_that_answers_nonsense_fails_the_prompt_and_not_the_runner(scores):
    class Odd(FakeModel):
        def score(self, prompts):
            return scores

    batcher = MicroBatcher(num_runners=1)
    assert isinstance(ask(batcher, Odd(), 1)[0], ScoringError)
    assert ask(batcher, FakeModel(), 2) == [2.0]


def test_no_waiting_is_planned_into_the_last_fifth_of_a_deadline(pool):
    held = Held(pool, CostTable((8,), {1: (0.5,)}))
    (tight,) = held.ask(1, timeout_s=1.1).result(60)
    assert isinstance(tight, ServiceOverloaded)
    ample = held.ask(2, timeout_s=1.6)
    held.release()
    assert ample.result(60) == [2.0]


def test_the_earliest_deadline_runs_first(pool):
    held = Held(pool)
    futures = [held.ask(name, timeout_s=timeout_s) for name, timeout_s in [(3, 9), (1, 7), (2, 8)]]
    held.release()
    assert [future.result(60) for future in futures] == [[3.0], [1.0], [2.0]]
    assert held.model.runs == [[0], [1], [2], [3]]


def test_equal_deadlines_run_in_order_of_arrival(pool):
    held = Held(pool)
    deadline_s = time.monotonic() + 9
    futures = [held.ask(name, call=Call(deadline_s)) for name in range(1, 6)]
    held.release()
    for future in futures:
        future.result(60)
    assert held.model.runs == [[name] for name in range(6)]


def test_an_expired_prompt_is_never_computed(pool):
    held = Held(pool)
    (late,) = held.ask(1, timeout_s=0.1).result(60)
    assert isinstance(late, ScoringTimeout)
    held.release()
    assert held.results[0].result(60) == [0.0]
    assert ask(held.batcher, held.model, 2) == [2.0]
    assert held.model.runs == [[0], [2]]
    assert held.batcher.num_expired == 1


def test_a_prompt_that_cannot_finish_in_time_is_not_begun():
    model = FakeModel(CostTable((8,), {1: (5.0,)}))
    (result,) = ask(MicroBatcher(num_runners=1), model, 1, timeout_s=1.0)
    assert isinstance(result, ScoringTimeout)
    assert model.runs == []


def test_a_cancelled_prompt_is_never_computed(pool):
    held = Held(pool)
    call = Call(time.monotonic() + 60)
    future = held.ask(1, call=call)
    call.cancel()
    assert isinstance(future.result(60)[0], ScoringTimeout)
    held.release()
    assert ask(held.batcher, held.model, 2) == [2.0]
    assert held.model.runs == [[0], [2]]


def test_a_wait_beyond_the_deadline_is_refused_at_once_with_the_time_to_wait(pool):
    held = Held(pool, CostTable((8,), {1: (0.5,)}))
    waiting = held.ask(1)
    started_s = time.monotonic()
    (refused,) = ask(held.batcher, held.model, 2, timeout_s=0.7)
    assert time.monotonic() - started_s < 0.2
    assert isinstance(refused, ServiceOverloaded)
    assert 0.2 < refused.retry_after_s < 1.0
    held.release()
    waiting.result(60)


def test_an_urgent_prompt_is_admitted_past_a_queue_of_patient_ones(pool):
    held = Held(pool, CostTable((8,), {1: (0.01,)}))
    patient = [held.ask(name, timeout_s=60) for name in range(1, 20)]
    urgent = held.ask(99, timeout_s=0.15)
    held.release()
    assert urgent.result(60) == [99.0]
    assert [future.result(60) for future in patient] == [[float(n)] for n in range(1, 20)]


def test_a_full_queue_refuses(pool):
    held = Held(pool, max_queued=2)
    waiting = held.ask(1, 2)
    (refused,) = ask(held.batcher, held.model, 3)
    assert isinstance(refused, ServiceOverloaded)
    held.release()
    assert waiting.result(60) == [1.0, 2.0]


def test_short_prompts_share_a_run_where_the_table_says_it_pays(pool):
    held = Held(pool, TOGETHER)
    futures = [held.ask(name) for name in range(1, 5)]
    held.release()
    assert [future.result(60) for future in futures] == [[1.0], [2.0], [3.0], [4.0]]
    assert sorted(map(len, held.model.runs)) == [1, 4]


def test_long_prompts_run_alone_where_company_costs_more(pool):
    held = Held(pool, TOGETHER)
    futures = [held.ask(name, tokens=64) for name in range(1, 5)]
    held.release()
    for future in futures:
        future.result(60)
    assert held.model.runs == [[name] for name in range(5)]


def test_one_bad_prompt_of_a_run_fails_alone(pool):
    held = Held(pool, TOGETHER)
    futures = [held.ask(name) for name in (1, -2, 3)]
    held.release()
    good, bad, also_good = [future.result(60)[0] for future in futures]
    assert (good, also_good) == (1.0, 3.0)
    assert isinstance(bad, ScoringError)


def test_a_call_of_many_prompts_uses_every_runner():
    model = FakeModel(run_s=0.02)
    batcher = MicroBatcher(num_runners=4)
    time.sleep(0.05)
    assert ask(batcher, model, *range(16)) == [float(name) for name in range(16)]
    assert model.most_at_once == 4


def test_a_runner_on_its_way_is_left_a_prompt_of_its_own():
    model = FakeModel(TOGETHER)
    batcher = MicroBatcher(num_runners=2)
    assert ask(batcher, model, 1, 2) == [1.0, 2.0]
    assert sorted(model.runs) == [[1], [2]]


def test_never_more_runs_at_once_than_runners(pool):
    model = FakeModel(run_s=0.002)
    batcher = MicroBatcher(num_runners=3)
    for future in [pool.submit(ask, batcher, model, n, n, n) for n in range(40)]:
        future.result(60)
    assert model.most_at_once == 3


def test_a_crashing_model_loses_no_permit():
    class Crashing(FakeModel):
        def score(self, prompts):
            raise MemoryError("boom")

    batcher = MicroBatcher(num_runners=1)
    assert isinstance(ask(batcher, Crashing(), 1)[0], ScoringError)
    assert ask(batcher, FakeModel(), 2) == [2.0]


CALLS = st.lists(
    st.tuples(
        st.integers(1, 4),  # prompts
        st.sampled_from([0.0, 0.001, 0.004, 0.02, 5.0]),  # timeout
        st.sampled_from([None, 0.0, 0.002]),  # cancelled after
    ),
    min_size=1,
    max_size=24,
)


@settings(max_examples=40, deadline=None)
@given(calls=CALLS, num_runners=st.integers(1, 3), costs=st.sampled_from([ALONE, TOGETHER]))
def test_whatever_callers_do_all_get_an_answer_and_the_batcher_ends_idle(calls, num_runners, costs):
    model = FakeModel(costs, run_s=0.001)
    batcher = MicroBatcher(num_runners=num_runners)

    def one(number: int, prompts: int, timeout_s: float, cancel_after_s: float | None):
        call = Call(time.monotonic() + timeout_s)
        if cancel_after_s is not None:
            threading.Timer(cancel_after_s, call.cancel).start()
        return ask(batcher, model, *[number] * prompts, call=call)

    with ThreadPoolExecutor(len(calls)) as callers:
        futures = [callers.submit(one, n, *call) for n, call in enumerate(calls)]
        for number, (future, (prompts, timeout_s, cancel)) in enumerate(
            zip(futures, calls, strict=True)
        ):
            results = future.result(60)
            assert len(results) == prompts
            for result in results:
                assert result == number or isinstance(result, ScoringError)
                if timeout_s == 5.0 and cancel is None:
                    assert result == number
    deadline_s = time.monotonic() + 60
    while batcher._free < num_runners and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert batcher._free == num_runners
    assert batcher.num_queued == 0
    assert batcher._queued_s == pytest.approx(0)
    assert batcher._running_s == pytest.approx(0)
    assert batcher.predicted_wait_s() == 0


def test_what_expires_between_the_queue_and_the_model_is_not_computed():
    """As where the machine stops a runner in between: the clock leaps as the lock is let go."""
    model, now_s = FakeModel(TOGETHER), [0.0]
    batcher = MicroBatcher(num_runners=1, clock=lambda: now_s[0])
    take = batcher._next_group

    def take_and_stall(done):
        group = take(done)
        now_s[0] += 1.5 * bool(group)
        return group

    batcher._next_group = take_and_stall
    calls = [Call(1.0), Call(2.0)]
    jobs = [Job(model, [name], call) for name, call in enumerate(calls)]
    finished = threading.Event()
    with batcher._lock:  # Both are there before the runner looks.
        threading.Thread(target=batcher.submit, args=(jobs[:1], calls[0], int)).start()
        threading.Thread(target=batcher.submit, args=(jobs[1:], calls[1], finished.set)).start()
        time.sleep(0.1)
    assert finished.wait(60)
    assert isinstance(jobs[0].result, ScoringTimeout)
    assert model.runs in ([[1]], [])
    assert batcher.num_begun_late == 0
    computed = sum(map(len, model.runs))
    assert (batcher.num_run_prompts, batcher.num_runs) == (computed, len(model.runs))
    assert batcher.num_expired == 2 - computed
