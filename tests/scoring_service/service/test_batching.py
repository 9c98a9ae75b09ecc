"""The batcher: order, deadlines, refusals, and that no permit is ever lost."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import ScoringError, ScoringTimeout, ServiceOverloaded
from scoring_service.cost_table import CostTable
from scoring_service.service.batching import Call, Job, MicroBatcher
from scoring_service.shares import Client
from tests.scoring_service.waiting import Clock, wait_until

ALONE = CostTable((8, 64), {1: (0.001, 0.008)})
TOGETHER = CostTable((8, 64), {1: (0.001, 0.008), 8: (0.002, 0.070)})
SECOND = CostTable((8,), {1: (1.0,)})
"""Every prompt takes a second."""


class FakeModel:
    """Scores a prompt with its first id; records its runs; can be held in a run."""

    def __init__(self, costs: CostTable = ALONE) -> None:
        self.costs = costs
        self.runs: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.during = lambda: None
        self.runners: set[int] = set()

    def score(self, prompts):
        self.runners.add(threading.get_ident())
        self.runs.append([prompt[0] for prompt in prompts])
        self.entered.release()
        assert self.gate.wait(60)
        self.during()
        if any(prompt[0] < 0 for prompt in prompts):
            raise ScoringError("negative")
        return [float(prompt[0]) for prompt in prompts]


class Asked:
    """Jobs that were submitted, and their results when all are there."""

    def __init__(self, batcher, model, *names, tokens=8, timeout_s=10.0, call=None):
        self.call, self.num_ended = call or Call(batcher._clock() + timeout_s), 0
        self.ended = SimpleQueue()
        self.jobs = [Job(model, [name] * tokens, self.call, self.ended.put) for name in names]
        batcher.submit(self.jobs, self.call)

    @property
    def results(self):
        for _ in range(len(self.jobs) - self.num_ended):
            self.ended.get(timeout=60)
            self.num_ended += 1
        return [job.result for job in self.jobs]

    @property
    def result(self):
        (result,) = self.results
        return result


class Held:
    """A batcher with one runner that is busy with prompt 0 until `release`; its clock stands."""

    def __init__(self, costs=ALONE, timeout_s=math.inf, **settings):
        self.clock = Clock()
        self.model = FakeModel(costs)
        self.batcher = MicroBatcher(num_runners=1, clock=self.clock, **settings)
        self.model.gate.clear()
        self.first = self.ask(0, timeout_s=timeout_s)
        assert self.model.entered.acquire(timeout=60)

    def ask(self, *names, **options):
        return Asked(self.batcher, self.model, *names, **options)

    def end(self):
        """Let the queue be worked off; returns the runs, the first one left out."""
        self.model.gate.set()
        idle(self.batcher)
        return self.model.runs[1:]


def idle(batcher):
    wait_until(lambda: batcher._free == batcher._num_runners)


def test_a_listener_that_fails_stops_no_runner():
    batcher, model = MicroBatcher(num_runners=1), FakeModel()
    call = Call(time.monotonic() + 600)
    batcher.submit([Job(model, [1], call, lambda job: 1 / 0)], call)
    assert Asked(batcher, model, 2, timeout_s=600).result == 2.0


@pytest.mark.parametrize("scores", [None, [], [1.0, 2.0], MemoryError("boom")])
def test_a_model_that_crashes_or_talks_nonsense_loses_no_permit(scores, caplog):
    class Odd(FakeModel):
        def score(self, prompts):
            if isinstance(scores, MemoryError):
                raise scores
            return scores

    batcher = MicroBatcher(num_runners=1, clock=Clock())
    assert isinstance(Asked(batcher, Odd(), 1).result, ScoringError)
    assert ("boom" in caplog.text) == isinstance(scores, MemoryError)
    assert Asked(batcher, FakeModel(), 2).result == 2.0


# Admission: the wait before a prompt and its own run must fit into four fifths of its time.


@pytest.mark.parametrize(("num_ahead", "time_needed_s"), [(0, 2.5), (1, 3.75), (3, 6.25)])
def test_a_prompt_has_to_end_in_four_fifths_of_its_time(num_ahead, time_needed_s):
    # One second for the prompt that runs, one for each ahead, one for its own, all times 5 / 4.
    held = Held(SECOND)
    for name in range(num_ahead):
        held.ask(name, timeout_s=2.5 + 1.25 * name + 1e-6)
    held.ask(7, timeout_s=time_needed_s + 1e-6)
    assert held.batcher.counts["refused_prompts"] == 0
    assert isinstance(held.ask(8, timeout_s=time_needed_s - 0.1).result, ServiceOverloaded)
    assert held.batcher.counts["refused_prompts"] == 1
    held.end()


@pytest.mark.parametrize("timeout_s", [0.5, 1.0, 2.0])
def test_a_refusal_says_when_there_will_be_room(timeout_s):
    held = Held(SECOND)
    held.ask(1, timeout_s=9.0)
    urgent = held.ask(2, timeout_s=timeout_s).result
    assert urgent.retry_after_s == pytest.approx(1.0 - max(0.8 * timeout_s - 1.0, 0.0))
    assert "1000 ms" in str(urgent)
    assert held.ask(3, timeout_s=2.4).result.retry_after_s == pytest.approx(1.0 - 0.92)
    held.end()


def test_a_prompt_that_needs_no_wait_is_admitted_at_any_deadline():
    held = Held(SECOND)
    held.end()
    batcher = held.batcher
    assert batcher.predicted_wait_s() == 0
    assert batcher.refuse_early(Call(held.clock() + 0.01)) is None
    batcher.slowdown = 1.0
    # It is taken at once, and dropped there if its run cannot end in time.
    assert held.ask(1, timeout_s=1.0).result == 1.0
    assert isinstance(held.ask(2, timeout_s=0.99).result, ScoringTimeout)
    assert batcher.counts["expired_prompts"] == 1
    assert batcher.counts["refused_prompts"] == 0
    assert held.model.runs == [[0], [1]]


def test_a_slow_machine_admits_fewer():
    held = Held(SECOND)
    held.batcher.slowdown = 2.0
    assert held.batcher.predicted_wait_s() == 2.0
    assert isinstance(held.ask(1, timeout_s=4.9).result, ServiceOverloaded)
    held.ask(2, timeout_s=5.001)
    assert held.batcher.counts["refused_prompts"] == 1
    held.batcher.slowdown = 1.0
    held.end()


def test_only_what_is_as_urgent_counts_as_ahead():
    held = Held(SECOND)
    for deadline_s in (10.0, 20.0, 30.0):
        held.ask(1, timeout_s=deadline_s)
    waits_s = [held.batcher.predicted_wait_s(Client(), held.clock() + at) for at in (9, 10, 25, 99)]
    assert waits_s == [1.0, 2.0, 3.0, 4.0]
    assert held.batcher.predicted_wait_s() == 4.0
    held.end()


def test_a_full_queue_refuses_even_the_urgent_at_once():
    held = Held(max_queued=2)
    mixed = held.ask(1, 2, 3)
    assert mixed.ended.qsize() == 1  # The others end later.
    refused = mixed.jobs[2].result
    assert isinstance(refused, ServiceOverloaded)
    assert "2 prompts are queued" in str(refused)
    assert refused.retry_after_s == pytest.approx(0.003)
    assert (held.batcher.counts["refused_prompts"], held.batcher.num_queued) == (1, 2)
    held.end()
    assert mixed.results[:2] == [1.0, 2.0]


def test_asking_early_refuses_what_no_prompt_could_do():
    held = Held(SECOND, max_queued=2)
    # The cost of the prompt itself is not known yet: only the wait counts.
    assert held.batcher.refuse_early(Call(held.clock() + 1.2500001)) is None
    assert held.batcher.counts["refused_prompts"] == 0
    refusal = held.batcher.refuse_early(Call(held.clock() + 1.2))
    assert refusal.retry_after_s == pytest.approx(1.0 - 0.96)
    assert held.batcher.counts["refused_prompts"] == 1
    held.ask(1, 2)
    assert "2 prompts are queued" in str(held.batcher.refuse_early(Call(math.inf)))
    held.end()


def test_the_earliest_deadline_runs_first_and_equal_by_arrival():
    held = Held()
    for name, timeout_s in [(3, 9), (1, 7), (2, 8)]:
        held.ask(name, timeout_s=timeout_s)
    same = Call(held.clock() + 9)
    for name in range(4, 7):
        held.ask(name, call=same)
    assert held.end() == [[1], [2], [3], [4], [5], [6]]


@pytest.mark.parametrize(
    ("costs", "late_s", "in_time_s", "waited_s"),
    [
        (ALONE, 1.0, 2.0, 1.5),  # The deadline has passed.
        (SECOND, 5.0, 5.5, 4.25),  # The run could only end late.
        (SECOND, 5.0, 5.25, 4.25),  # The other run ends just at its deadline.
    ],
)
def test_a_prompt_that_would_be_late_is_never_computed(costs, late_s, in_time_s, waited_s):
    held = Held(costs)
    late, in_time = held.ask(1, timeout_s=late_s), held.ask(2, timeout_s=in_time_s)
    held.clock.now_s += waited_s
    assert held.end() == [[2]]
    assert isinstance(late.result, ScoringTimeout)
    assert in_time.result == 2.0
    assert held.batcher.counts["expired_prompts"] == 1


def test_a_cancelled_prompt_is_not_computed_and_leaves_at_once():
    held, early = Held(), Call(10.0)
    gone = held.ask(1, 2)
    assert held.batcher.num_queued == 2
    gone.call.cancel()
    early.cancel()  # Before it is submitted.
    assert {type(result) for result in gone.results} == {ScoringTimeout}
    assert isinstance(held.ask(4, call=early).result, ScoringTimeout)
    assert (held.batcher.num_queued, held.batcher.counts["expired_prompts"]) == (0, 3)
    held.ask(3)
    assert held.end() == [[3]]
    assert held.batcher._queue.all.cost == pytest.approx(0)


def test_what_is_cancelled_in_its_run_is_told_once_and_has_run():
    held = Held()
    held.first.call.cancel()
    assert isinstance(held.first.result, ScoringTimeout)
    held.end()
    assert (held.batcher.counts["expired_prompts"], held.batcher.counts["run_prompts"]) == (0, 1)


@pytest.mark.parametrize(("others_s", "runs"), [([1.5], [[2]]), ([], [])])
def test_what_expires_between_queue_and_model_is_not_computed(others_s, runs):
    held = Held(TOGETHER)
    late = held.ask(1, timeout_s=1.0)
    in_time = [held.ask(2, timeout_s=timeout_s) for timeout_s in others_s]
    take = held.batcher._next_group

    def take_and_stall(done):
        """A runner that the machine stops before its run: the clock leaps."""
        group = take(done)
        held.clock.now_s += 1.5 * bool(group)
        return group

    held.batcher._next_group = take_and_stall
    assert held.end() == runs
    assert isinstance(late.result, ScoringTimeout)
    assert [one.result for one in in_time] == [2.0] * len(others_s)
    counts = [held.batcher.counts[name] for name in ("run_prompts", "model_runs")]
    assert counts == [1 + len(runs)] * 2
    assert held.batcher.counts["expired_prompts"] == 1


@pytest.mark.parametrize(
    ("costs", "tokens", "runs"),
    [
        # No more than the table has.
        (TOGETHER, [8] * 11, [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11]]),
        # The most alike first.
        (CostTable((8, 64), {1: (1.0, 3.0), 2: (1.5, 3.5)}), [8, 64, 8], [[1, 3], [2]]),
        # Long prompts alone, where company costs more.
        (TOGETHER, [64] * 4, [[1], [2], [3], [4]]),
    ],
)
def test_company_is_what_the_table_says_pays(costs, tokens, runs):
    held = Held(costs)
    for name, size in enumerate(tokens, 1):
        held.ask(name, tokens=size, timeout_s=600)
    assert [sorted(run) for run in held.end()] == runs


def test_company_is_of_like_length_and_padding_is_counted():
    # Eight of 16 tokens cost .004 s, one .00225: five more of them fit, and none of 64.
    costs = CostTable((8, 16, 64), {1: (0.001, 0.00225, 0.5), 8: (0.002, 0.004, 8.0)})
    held = Held(costs)
    for name, tokens in [(1, 16), (2, 64), (3, 8), (4, 16)]:
        held.ask(name, tokens=tokens)
    assert sorted(map(sorted, held.end())) == [[1, 3, 4], [2]]
    assert held.batcher.counts["run_tokens"] == 8 + 16 + 8 + 16 + 64
    assert held.batcher.counts["padded_tokens"] == 8 + 3 * 16 + 64


def test_company_makes_no_one_late():
    # Alone a second, two together 1.4 s and eight 1.7 s.
    costs = CostTable((8,), {1: (1.0,), 2: (1.4,), 8: (1.7,)})
    for left_s, runs in [(1.5, [[1, 2]]), (1.3, [[1], [2]])]:
        held = Held(costs)
        held.ask(1, timeout_s=20.0)
        held.ask(2, timeout_s=30.0)
        held.clock.now_s += 20.0 - left_s
        assert held.end() == runs


def test_company_comes_from_the_same_model_and_has_a_caller():
    held, other = Held(TOGETHER), FakeModel(TOGETHER)
    held.ask(1)
    theirs = Asked(held.batcher, other, 2)
    gone = held.ask(3)
    gone.call.cancelled = True  # Cancelled, and not yet off the queue.
    held.ask(4)
    assert held.end() == [[1, 4]]
    assert theirs.result == 2.0
    assert other.runs == [[2]]
    assert isinstance(gone.result, ScoringTimeout)


def test_one_bad_prompt_of_a_run_fails_alone():
    held = Held(TOGETHER)
    good, bad, also_good = [held.ask(name) for name in (1, -2, 3)]
    assert list(map(len, held.end())) == [3, 1, 1, 1]
    assert (good.result, also_good.result) == (1.0, 3.0)
    assert isinstance(bad.result, ScoringError)


@pytest.mark.parametrize("num_runners", [1, 3])
def test_a_call_of_many_prompts_uses_every_runner_and_never_more(num_runners):
    model = FakeModel()
    meeting = threading.Barrier(num_runners)
    model.during = lambda: meeting.wait(60)
    batcher = MicroBatcher(num_runners=num_runners, clock=Clock())
    names = range(4 * num_runners)
    assert Asked(batcher, model, *names).results == list(names)
    assert len(model.runners) == num_runners


def test_a_runner_on_its_way_is_left_a_prompt_of_its_own():
    model = FakeModel(TOGETHER)
    assert Asked(MicroBatcher(num_runners=2, clock=Clock()), model, 1, 2).results == [1.0, 2.0]
    assert sorted(model.runs) == [[1], [2]]


@pytest.mark.parametrize(("took_s", "ratio"), [(3.0, 3.0), (0.0, 0.1), (500.0, 10.0)])
def test_the_pace_follows_what_runs_took_within_bounds(took_s, ratio):
    held = Held(SECOND)
    held.clock.now_s += took_s
    held.end()
    assert held.batcher.slowdown == pytest.approx(1 + 0.05 * (ratio - 1))


def test_a_shared_runs_pace_is_held_against_the_cost_of_sharing():
    held = Held(TOGETHER)
    for name in range(8):
        held.ask(name)
    held.batcher.slowdown = 1.0
    held.model.during = lambda: setattr(held.clock, "now_s", held.clock.now_s + 0.002)
    held.end()
    # The first run took twice its time, the shared one just as long as the table says.
    assert held.batcher.slowdown == pytest.approx(1 + 0.05 - 0.05 * 0.05)


CALLS = st.lists(
    st.tuples(
        st.integers(1, 4),  # prompts
        st.sampled_from([0.0, 0.001, 0.004, 0.02, 6000.0]),  # timeout
        st.sampled_from([None, 0.0, 0.002]),  # cancelled after
    ),
    min_size=1,
    max_size=24,
)


@settings(max_examples=40, deadline=None)
@given(calls=CALLS, num_runners=st.integers(1, 3), costs=st.sampled_from([ALONE, TOGETHER]))
def test_whatever_callers_do_all_are_answered_and_it_ends_idle(calls, num_runners, costs):
    model = FakeModel(costs)
    model.during = lambda: time.sleep(0.001)
    batcher = MicroBatcher(num_runners=num_runners)

    def one(number: int, prompts: int, timeout_s: float, cancel_after_s: float | None):
        call = Call(time.monotonic() + timeout_s)
        if cancel_after_s is not None:
            threading.Timer(cancel_after_s, call.cancel).start()
        ended = SimpleQueue()
        batcher.submit([Job(model, [number] * 8, call, ended.put) for _ in range(prompts)], call)
        results = []
        with suppress(Empty):
            while len(results) < prompts:
                results.append(ended.get(timeout=max(call.deadline_s - time.monotonic(), 0)).result)
        batcher.drop(call)
        results += [ended.get(timeout=60).result for _ in range(prompts - len(results))]
        assert ended.empty()
        return results

    with ThreadPoolExecutor(len(calls)) as callers:
        futures = [callers.submit(one, n, *call) for n, call in enumerate(calls)]
        for number, (future, (prompts, timeout_s, cancel)) in enumerate(
            zip(futures, calls, strict=True)
        ):
            results = future.result(60)
            assert len(results) == prompts
            for result in results:
                assert result == number or isinstance(result, ScoringError)
                if timeout_s == 6000.0 and cancel is None:
                    assert result == number
    idle(batcher)
    assert batcher.num_queued == 0
    assert batcher._queue.all.cost == pytest.approx(0)
    assert batcher._running_s == pytest.approx(0)
    assert batcher.predicted_wait_s() == 0


# Shares: between clients the predicted compute counts, not deadlines and not the number of calls.

GREEDY, HONEST = Client("greedy"), Client("honest")


def call_of(held, client, timeout_s):
    return Call(held.clock() + timeout_s, client)


def test_a_clients_flood_delays_others_by_a_share_and_stops_none():
    held = Held(SECOND, max_queued=20)
    flood = held.ask(*range(100, 130), call=call_of(held, GREEDY, 50.0))
    assert sum(isinstance(job.result, ServiceOverloaded) for job in flood.jobs) == 10
    # In 8.75 s there is room for one that runs, three of each client, and its own.
    honest = held.ask(1, 2, 3, call=call_of(held, HONEST, 8.75))
    assert held.batcher.predicted_wait_s(HONEST, 1e9) == 1.0 + 3 + 3
    assert not any(isinstance(job.result, ServiceOverloaded) for job in honest.jobs)
    assert sorted(held.end()[:6]) == [[1], [2], [3], [100], [101], [102]]
    assert honest.results == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("together_s", "shared"), [(1.2, [1, 100]), (1.5, [100, 101])])
def test_a_prompt_shares_a_run_where_that_delays_it_little(together_s, shared):
    held = Held(CostTable((8,), {1: (1.0,), 2: (together_s,)}))
    held.ask(1, call=call_of(held, HONEST, 90.0))
    held.ask(100, 101, call=call_of(held, GREEDY, 30.0))
    assert shared in [sorted(run) for run in held.end()]


def test_prompts_of_a_mixed_call_are_their_own_clients():
    held = Held(SECOND)
    call = Call(held.clock() + 90.0, HONEST)
    ended = SimpleQueue()
    names = [(n, GREEDY if n < 104 else HONEST) for n in range(100, 106)]
    jobs = [Job(held.model, [n] * 8, call, ended.put, client) for n, client in names]
    held.batcher.submit(jobs, call)
    assert [run[0] for run in held.end()] == [100, 104, 101, 105, 102, 103]
