"""Live figures of tokens, against the plain definitions."""

from __future__ import annotations

import random

import numpy as np
import pytest

from scheduler_adapters.timeline.token_clock import (
    DEFAULT_TBT_S,
    MAX_CLASSES,
    OTHER_CLASS,
    TBT_BUCKETS_S,
    TokenClock,
)
from scheduler_adapters.views import Phase, RequestView

END = 7


def view(name: str, *, tbt_s: float | None = 0.1, user_class: str = "chat") -> RequestView:
    return RequestView(name, 0, 1.0, 4, user_class=user_class, tbt_s=tbt_s)


def qoe_as_defined(token_s: list[float], tbt_s: float) -> float:
    shown_s = [token_s[0]]
    for instant_s in token_s[1:]:
        shown_s.append(max(instant_s, shown_s[-1] + tbt_s))
    end_s = shown_s[-1] + tbt_s
    expected_s = [token_s[0] + number * tbt_s for number in range(len(token_s))]
    return sum(end_s - u for u in shown_s) / sum(end_s - x for x in expected_s)


@pytest.mark.parametrize("seed", range(5))
def test_qoe_and_gaps_are_those_of_the_definition_for_any_run(seed: int) -> None:
    dice, clock = random.Random(seed), TokenClock()
    names = [str(number) for number in range(90)]  # more than one growth of the table
    targets = {name: dice.choice([0.05, 0.2]) for name in names}
    token_s: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        clock.admitted(view(name, tbt_s=targets[name]))
    now_s = 2.0
    for _ in range(40):
        now_s += dice.choice([0.01, 0.08, 0.6])
        ran = dice.sample(names, dice.randint(1, 90))
        tokens = [[1] * dice.choice([1, 1, 3]) for _ in ran]
        clock.step_ended(now_s, ran, tokens)
        for name, new in zip(ran, tokens, strict=True):
            token_s[name] += [now_s] * len(new)
    steps_s = {name: sorted(set(times)) for name, times in token_s.items()}
    gaps_s = np.concatenate([np.diff(times) for times in steps_s.values()])
    assert clock.tbt_counts[0, 1].sum() == len(gaps_s)
    assert clock.tbt_sums_s[0, 1] == pytest.approx(gaps_s.sum())
    assert clock.tbt_counts[0, 1, -1] == (gaps_s > TBT_BUCKETS_S[-1]).sum()
    served = [name for name in names if token_s[name]]
    for name in served:
        clock.finished(name)
    expected = [qoe_as_defined(token_s[name], targets[name]) for name in served]
    assert [qoe for _, qoe in clock.finished_qoe] == pytest.approx(expected)
    assert len(clock) == len(names) - len(served)


def test_the_pacer_is_empty_once_the_reader_has_read_all_that_came() -> None:
    clock = TokenClock()
    clock.admitted(view("a"))
    clock.step_ended(2.0, ["a"], [[1]])
    clock.step_ended(2.01, ["a"], [[1, 1]])  # shown at 2.1 and 2.2
    assert clock.pacers(2.05) == (1, 0, 2)
    assert clock.pacers(2.15) == (1, 0, 1)
    assert clock.pacers(2.31) == (0, 1, 0)
    clock.finished("a")
    assert clock.pacers(9.0) == (0, 0, 0)


def test_answering_begins_behind_the_whole_end_marker() -> None:
    clock = TokenClock(think_end=(5, END))
    clock.admitted(view("a"))
    assert clock.phase("a") is Phase.PREFILL
    for number, token in enumerate([1, 5, 5, END]):
        clock.step_ended(2.0 + number, ["a"], [[token]])
        assert clock.phase("a") is (Phase.ANSWERING if token == END else Phase.REASONING)
    assert clock.first_answers == []
    clock.step_ended(6.5, ["a"], [[END]])
    assert clock.first_answers == [("chat", 5.5)]
    reasoning, answering = clock.tbt_counts[0].sum(axis=-1)
    assert (reasoning, answering) == (3, 1)


def test_classes_are_counted_apart_and_requests_without_a_target_read_at_the_default() -> None:
    clock = TokenClock()
    clock.admitted(view("a", user_class="chat"))
    clock.admitted(view("b", user_class="", tbt_s=None))
    for now_s in (2.0, 2.0 + 3 * DEFAULT_TBT_S):
        clock.step_ended(now_s, ["a", "b"], [[1], [1]])
    clock.finished("b")
    assert clock.classes == ["chat", ""]
    assert clock.tbt_counts.sum(axis=(1, 2)).tolist() == [1, 1]
    user_class, qoe = clock.finished_qoe[0]
    assert user_class == ""
    assert qoe == pytest.approx(qoe_as_defined([2.0, 2.0 + 3 * DEFAULT_TBT_S], DEFAULT_TBT_S))


def test_classes_that_clients_make_up_are_counted_together() -> None:
    clock = TokenClock()
    for number in range(1000):
        clock.admitted(view(str(number), user_class=f"class {number}"))
        clock.forget([str(number)])
    assert len(clock.classes) == len(clock.tbt_counts) == MAX_CLASSES + 1
    assert clock.classes[-1] == OTHER_CLASS
    clock.admitted(view("a", user_class="class 3"))
    clock.admitted(view("b", user_class="one more"))
    assert [clock.user_class(name) for name in "abc"] == ["class 3", OTHER_CLASS, ""]


def test_aborted_requests_leave_nothing() -> None:
    clock = TokenClock(think_end=(END,))
    for number in range(1000):
        clock.admitted(view(str(number)))
        clock.forget([str(number), "unknown"])
    clock.finished("unknown")
    assert len(clock) == len(clock._matched) == 0
    assert len(clock._thinking) == 64
    assert clock.finished_qoe == []


def test_a_step_without_tokens_after_someone_left_changes_nothing() -> None:
    clock = TokenClock()
    clock.admitted(view("a"))
    clock.step_ended(2.0, ["a"], [[1]])
    clock.forget(["a"])
    clock.step_ended(3.0, [], [])
    assert clock.tbt_counts.sum() == 0
    assert len(clock) == 0
