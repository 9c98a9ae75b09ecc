"""The cache: exact, bounded, and one computation for equal prompts at once."""

from __future__ import annotations

from lengthwise.errors import ScoringError
from scoring_service.service.cache import Flight, ScoreCache, Scored

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
    assert (len(cache), cache.num_hits, cache.num_joins) == (2, 1, 0)


def test_a_cache_of_no_entries_still_joins_equal_prompts():
    cache, landed = ScoreCache(0), []
    flight = cache.begin("a", print)
    assert cache.begin("a", landed.append) is None
    assert cache.num_joins == 1
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
