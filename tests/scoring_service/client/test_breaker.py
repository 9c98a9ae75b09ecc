"""The breaker stops callers of a service that fails, and always lets one try again."""

from hypothesis import given, strategies as st

from scoring_service.client.breaker import CircuitBreaker
from tests.scoring_service.waiting import Clock


def test_the_breaker_opens_on_failures_for_a_pause_and_tries_one():
    clock = Clock()
    breaker = CircuitBreaker(max_failures=3, open_s=1.0, clock=clock)
    for _ in range(3):
        assert breaker.allow()
        breaker.failure()
    assert not breaker.allow()
    clock.now_s = 1.3
    assert [breaker.allow() for _ in range(3)] == [True, False, False]
    breaker.failure()
    clock.now_s = 2.6
    assert not breaker.allow()  # twice as long as before
    clock.now_s = 4.0
    assert breaker.allow()
    breaker.success()
    assert all(breaker.allow() for _ in range(3))
    breaker.pause(2.0)
    assert not breaker.allow()
    clock.now_s += 2.5
    assert breaker.allow()


EVENTS = ["allow", "success", "failure", "unsure", "pause", "wait"]


@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_the_breaker_always_lets_someone_try_again(events):
    clock = Clock()
    breaker = CircuitBreaker(max_open_s=4.0, clock=clock)
    for event in events:
        if event == "wait":
            clock.now_s += 1
        elif event == "pause":
            breaker.pause(100.0)
        elif event == "allow":
            if breaker.allow():
                breaker.failure()
        else:
            getattr(breaker, event)()
    clock.now_s += 5
    assert breaker.allow()
