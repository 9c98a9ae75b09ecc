"""Live figures of tokens, against the plain definitions."""

import random
from collections import Counter

import numpy as np
import pytest

from scheduler_adapters.timeline import observer
from scheduler_adapters.timeline.token_clock import (
    DEFAULT_TBT_S,
    MAX_CLASSES,
    OTHER_CLASS,
    TBT_BUCKETS_S,
    TokenClock,
)
from scheduler_adapters.views import Phase, RequestView
from tests.scheduler_adapters.timeline.test_qoe import by_definition


def view(name: str, *, tbt_s: float | None = 0.1, user_class: str = "chat") -> RequestView:
    return RequestView(name, 0, 1.0, 4, user_class=user_class, tbt_s=tbt_s)


def step(
    clock: TokenClock, now_s: float, counts: dict[str, int], *, thought: str | None = None
) -> None:
    """A step that gave these requests so many tokens."""
    clock.emitted_each([view(name) for name in counts], list(counts.values()), now_s)
    if thought is not None:
        clock.thinking_ended(view(thought), now_s)
    clock.stepped(now_s)


def values(clock: TokenClock, metric: str) -> list[float]:
    """The values of a metric of the class "chat" so far."""
    clock.take_all()
    return [
        value
        for name, user_class, value in clock.latencies
        if (name, user_class) == (metric, "chat")
    ]


def finish(clock: TokenClock, *names: str, now_s: float = 9.0) -> None:
    for name in names:
        clock.finished(view(name), now_s)
    clock.stepped(now_s)


@pytest.mark.parametrize("seed", range(5))
def test_qoe_and_gaps_are_those_of_the_definition_for_any_run(seed, monkeypatch):
    if seed % 2:
        monkeypatch.setattr(observer, "_MAX_STEPS", 7)
    dice, clock = random.Random(seed), TokenClock()
    names = [str(number) for number in range(90)]
    targets = {name: dice.choice([0.05, 0.2]) for name in names}
    token_s: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        clock.admitted(view(name, tbt_s=targets[name]), 1.5)
    now_s, ran, most = 2.0, names[:9], 1
    for _ in range(80):
        now_s += dice.choice([0.01, 0.08, 0.6])
        if dice.random() < 0.3:
            ran = dice.sample(names, dice.randint(1, 90))
            most = dice.choice([1, 1, 3])
        counts = {name: dice.choice([1, 1, most]) for name in ran}
        step(clock, now_s, counts)
        for name, count in counts.items():
            token_s[name] += [now_s] * count
    steps_s = {name: sorted(set(times)) for name, times in token_s.items()}
    gaps_s = np.concatenate([np.diff(times) for times in steps_s.values()])
    clock.take_all()
    assert clock.tbt_counts.total() == len(gaps_s)
    assert clock.tbt_sums_s["chat", Phase.ANSWERING] == pytest.approx(gaps_s.sum())
    for bucket, edge in enumerate([*TBT_BUCKETS_S, np.inf]):
        least = [-np.inf, *TBT_BUCKETS_S][bucket]
        expected = ((least < gaps_s) & (gaps_s <= edge)).sum()
        assert clock.tbt_counts["chat", Phase.ANSWERING, bucket] == expected
    served = [name for name in names if token_s[name]]
    finish(clock, *served)
    expected = [by_definition(token_s[name], token_s[name][0], targets[name]) for name in served]
    assert values(clock, "qoe") == pytest.approx(expected)
    assert len(clock.open) == len(names) - len(served)
    times = [token_s[name] for name in served]
    assert values(clock, "ttft_seconds") == [one[0] - 1.0 for one in times]
    assert values(clock, "e2e_seconds") == [one[-1] - 1.0 for one in times]
    expected = [(one[-1] - one[0]) / (len(one) - 1) for one in times if len(one) > 1]
    assert values(clock, "tpot_seconds") == expected


def test_the_pacer_is_empty_once_the_reader_has_read_everything():
    clock = TokenClock()
    clock.admitted(view("a"), 1.5)
    step(clock, 2.0, {"a": 1})
    step(clock, 2.01, {"a": 2})  # shown at 2.1 and 2.2
    assert clock.pacers(2.05) == (1, 0, 2)
    assert clock.pacers(2.15) == (1, 0, 1)
    assert clock.pacers(2.31) == (0, 1, 0)
    finish(clock, "a")
    assert clock.pacers(9.0) == (0, 0, 0)


def test_answering_begins_behind_the_token_that_ends_thinking():
    clock = TokenClock(thinks=True)
    clock.admitted(view("a"), 1.5)
    assert clock.phase("a") is Phase.PREFILL
    for number in range(4):
        step(clock, 2.0 + number, {"a": 1}, thought="a" if number == 3 else None)
        assert clock.phase("a") is (Phase.ANSWERING if number == 3 else Phase.REASONING)
    assert clock.latencies == []
    step(clock, 6.5, {"a": 1}, thought="a")
    clock.take_all()
    assert clock.latencies == [
        ("first_answer_seconds", "chat", 5.5), ("ttfat_seconds", "chat", 1.5)
    ]  # fmt: skip
    gaps = Counter(phase for _, phase, _ in clock.tbt_counts.elements())
    assert gaps == {Phase.REASONING: 3, Phase.ANSWERING: 1}


def test_if_the_prompt_ended_thinking_the_first_token_answers():
    clock = TokenClock(thinks=True)
    for name in ("a", "b"):
        clock.admitted(view(name), 1.5)
    clock.thinking_ended(view("a"), 1.5)
    assert clock.phase("a") is Phase.PREFILL
    step(clock, 2.0, {"a": 1, "b": 1})
    assert [clock.phase(name) for name in "ab"] == [Phase.ANSWERING, Phase.REASONING]
    assert clock.latencies == [("first_answer_seconds", "chat", 1.0)]
    finish(clock, "a")
    assert values(clock, "qoe") == [1.0]


def test_answers_are_counted_by_their_tokens():
    clock = TokenClock(thinks=True)
    for name in ("a", "b", "c"):
        clock.admitted(view(name), 1.5)
    step(clock, 2.0, {"a": 1, "b": 1}, thought="a")
    # a answers without a token yet, b thinks, c has not begun.
    assert [clock.num_answers_below(number) for number in (0, 1)] == [0, 1]
    step(clock, 3.0, {"a": 3, "b": 1})
    assert [clock.num_answers_below(number) for number in (3, 4)] == [0, 1]


def test_classes_count_apart_and_read_at_the_default_target():
    clock = TokenClock()
    clock.admitted(view("a", user_class="chat"), 1.5)
    clock.admitted(view("b", user_class="", tbt_s=None), 1.5)
    for now_s in (2.0, 2.0 + 3 * DEFAULT_TBT_S):
        step(clock, now_s, {"a": 1, "b": 1})
    finish(clock, "b")
    clock.take_all()
    assert sorted(name for name, *_ in clock.tbt_counts.elements()) == ["", "chat"]
    (qoe,) = (value for *of, value in clock.latencies if of == ["qoe", ""])
    assert qoe == pytest.approx(by_definition([2.0, 2.0 + 3 * DEFAULT_TBT_S], 2.0, DEFAULT_TBT_S))


def test_classes_that_clients_make_up_are_counted_together():
    clock = TokenClock()
    for number in range(1000):
        clock.admitted(view(str(number), user_class=f"class {number}"), 1.5)
        clock.withdrawn(view(str(number)), 1.6)
    assert len(clock.classes) == MAX_CLASSES + 1
    assert OTHER_CLASS in clock.classes
    clock.admitted(view("a", user_class="class 3"), 1.5)
    clock.admitted(view("b", user_class="one more"), 1.5)
    assert [clock.user_class(name) for name in "abc"] == ["class 3", OTHER_CLASS, ""]


def test_aborted_requests_leave_nothing():
    clock = TokenClock(thinks=True)
    for number in range(1000):
        clock.queued(view(str(number)), 1.2)
        if number % 2:
            clock.admitted(view(str(number)), 1.5)
        clock.withdrawn(view(str(number)), 1.6)
        clock.withdrawn(view("unknown"), 1.6)
    finish(clock, "unknown")
    assert len(clock.open) == len(clock._queued_s) == 0
    assert clock.latencies == []


def test_a_finished_request_leaves_latencies_if_it_has_a_token():
    clock = TokenClock()
    for name in ("a", "b", "c"):
        clock.queued(view(name), 1.25)
        clock.admitted(view(name), 2.0)
    clock.admitted(view("a"), 2.5)  # after an eviction
    step(clock, 3.0, {"a": 1, "b": 1})
    step(clock, 3.5, {"a": 2})
    finished = view("a")
    finished.preemptions = 1
    clock.finished(finished, 3.5)
    finish(clock, "b", "c")
    assert values(clock, "queueing_seconds") == [0.75, 0.75]
    assert values(clock, "ttft_seconds") == [2.0, 2.0]
    assert values(clock, "e2e_seconds") == [2.5, 2.0]
    assert values(clock, "tpot_seconds") == [0.25]
    assert values(clock, "preemptions") == [1, 0]
    assert len(clock.open) == 0
