"""A call's results: known, computed, or computed by another call that is at it."""

import math
import time

import pytest

from lengthwise.errors import ScoringError, ScoringTimeout, ServiceOverloaded
from scoring_service.service.batching import Call, too_late
from scoring_service.service.call_results import CallResults, Flight, ScoreCache, Scored
from scoring_service.tokenizing import TokenizedPrompt


class Costs:
    def predict_s(self, batch, tokens):
        return 0.001


class Model:
    """Its tokenizer makes one token of each character."""

    costs = Costs()

    @property
    def tokenizer(self):
        return self

    def tokenize(self, prompts):
        if "break" in prompts:
            raise ValueError("as told")
        return [TokenizedPrompt(list(range(len(prompt))), len(prompt) > 4) for prompt in prompts]


class Batcher:
    """Keeps what is submitted until the test scores it."""

    def __init__(self):
        self.submitted, self.refusal = [], None

    def refuse_early(self, call):
        return self.refusal

    def submit(self, jobs, call):
        self.submitted.append(jobs)

    def score(self, *results):
        for number, (job, result) in enumerate(zip(self.submitted.pop(0), results, strict=True), 1):
            job.result, job.queue_s, job.infer_s = result, 1.0 / number, 0.5
            job.on_result(job)


class Calls:
    """Calls that share a cache and a batcher."""

    def __init__(self):
        self.cache, self.batcher = ScoreCache(8), Batcher()

    def begin(self, *prompts, deadline_s=math.inf):
        done = []
        wanted = {ScoreCache.key("r", prompt): prompt for prompt in prompts}
        call = Call(deadline_s)
        pending = CallResults(Model(), self.cache, self.batcher, wanted, call, done.append)
        pending.done, pending.caller = done, call
        pending.request(wanted)
        return pending


@pytest.fixture
def calls():
    return Calls()


def results(pending):
    assert pending.done == [pending]
    return list(pending.results.values())


def test_results_come_when_all_are_there_with_times_of_stages(calls):
    pending = calls.begin("yes", "essay")
    assert pending.done == []
    calls.batcher.score(1.0, 2.0)
    assert results(pending) == [Scored(1.0, 3, False), Scored(2.0, 5, True)]
    assert [(job.queue_s, job.infer_s) for job in pending.jobs] == [(1.0, 0.5), (0.5, 0.5)]


def test_what_is_known_is_not_computed_again(calls):
    calls.begin("yes")
    calls.batcher.score(1.0)
    both = calls.begin("yes", "no")
    assert [len(jobs) for jobs in calls.batcher.submitted] == [1]
    assert both.done == []
    calls.batcher.score(2.0)
    assert sorted(result.score for result in results(both)) == [1.0, 2.0]


def test_equal_prompts_run_once_and_have_deadlines_of_their_own(calls):
    first, second, third = calls.begin("yes"), calls.begin("yes"), calls.begin("yes")
    assert len(calls.batcher.submitted) == 1
    calls.batcher.score(too_late())
    assert isinstance(results(first)[0], ScoringTimeout)
    assert second.done == third.done == []
    assert len(calls.batcher.submitted) == 1
    calls.batcher.score(3.0)
    assert results(second) == results(third) == [Scored(3.0, 3, False)]


@pytest.mark.parametrize("why", ["cancelled", "late"])
def test_who_has_no_time_left_does_not_try_for_itself(calls, why):
    first = calls.begin("yes")
    deadline_s = math.inf if why == "cancelled" else time.monotonic()
    second = calls.begin("yes", deadline_s=deadline_s)
    second.caller.cancelled = why == "cancelled"
    calls.batcher.score(too_late())
    assert isinstance(results(first)[0], ScoringTimeout)
    assert isinstance(results(second)[0], ScoringTimeout)
    assert calls.batcher.submitted == []


def test_a_refusal_costs_no_tokenizing_and_is_for_this_call_only(calls, caplog):
    calls.batcher.refusal = ServiceOverloaded("full")
    assert results(calls.begin("break")) == [calls.batcher.refusal]
    calls.batcher.refusal = None
    (error,) = results(calls.begin("break"))
    assert type(error) is ScoringError
    assert "as told" in caplog.text


ONE, TWO, THREE = (Scored(float(n), n, False) for n in (1, 2, 3))


def put(cache, key, score):
    cache.end(cache.begin(key, print), score)


def known(cache, *keys):
    """Which of the keys have an entry, without using them."""
    return [key in cache._entries for key in keys]


def test_the_least_recently_used_goes_first():
    cache = ScoreCache(2)
    put(cache, "a", ONE)
    put(cache, "b", TWO)
    assert cache.begin("a", print) == ONE
    put(cache, "c", THREE)
    assert known(cache, "a", "b", "c") == [True, False, True]
    assert (len(cache), cache.counts["cache_hits"], cache.counts["cache_joins"]) == (2, 1, 0)


def test_a_cache_of_no_entries_still_joins_equal_prompts():
    cache, landed = ScoreCache(0), []
    flight = cache.begin("a", print)
    assert cache.begin("a", landed.append) is None
    assert cache.counts["cache_joins"] == 1
    assert landed == []
    cache.end(flight, ONE)
    assert landed == [flight]
    assert flight.result == ONE
    assert len(cache) == 0


def test_a_failure_is_told_and_not_kept():
    cache, landed = ScoreCache(8), []
    flight = cache.begin("a", print)
    cache.begin("a", landed.append)
    cache.end(flight, error := ScoringError("failed"))
    assert landed[0].result is error
    assert isinstance(cache.begin("a", print), Flight)


def test_keys_are_equal_for_equal_prompts_of_one_revision_only():
    keys = {ScoreCache.key(r, p) for r in ("r1", "r2") for p in ("yes", "no", "yes", "\u00e9")}
    assert len(keys) == 6
