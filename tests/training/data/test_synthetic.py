"""The synthetic set: distinct prompts, the same for the same seed, as predictable as it says."""

from __future__ import annotations

import pytest

from scoring_service.agreement import tau_b
from training.data.synthetic import MANNERS, TASKS, generate


def test_the_synthetic_set_is_as_predictable_as_it_says() -> None:
    records, attainable = generate(3000, seed=1)
    again, _ = generate(3000, seed=1)
    assert records == again
    assert records != generate(3000, seed=2)[0]
    assert len({record.prompt for record in records}) == 3000
    lengths = [record.output_tokens for record in records]
    assert min(lengths) >= 1
    assert 0.8 < attainable < 0.95
    assert tau_b(lengths, lengths) == pytest.approx(1.0)


def test_a_manner_shifts_a_long_task_more_than_a_short_one() -> None:
    records, _ = generate(20_000, seed=0)
    briefly, fully = min(MANNERS, key=MANNERS.__getitem__), max(MANNERS, key=MANNERS.__getitem__)

    def mean(task: str, manner: str) -> float:
        ends = [r for r in records if r.prompt.startswith(task) and r.prompt.endswith(f"{manner}.")]
        return sum(record.output_tokens for record in ends) / len(ends)

    long, short = max(TASKS, key=TASKS.__getitem__), min(TASKS, key=TASKS.__getitem__)
    assert mean(long, fully) / mean(long, briefly) > 3 * mean(short, fully) / mean(short, briefly)
