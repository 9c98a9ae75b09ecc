"""The synthetic set: distinct prompts, the same for the same seed, as predictable as stated."""

import numpy as np
import pytest

from lengthwise.agreement import tau_b
from tests.training.prompts import labels
from training.data.labels import lengths_of, observed
from training.data.synthetic import MANNERS, SAMPLES, TASKS, generate
from training.evaluation.baselines import tfidf_ridge


def test_a_seed_repeats_the_synthetic_set_with_real_lengths():
    records, _ = generate(3000, seed=1)
    assert records == generate(3000, seed=1)[0]
    assert records != generate(3000, seed=2)[0]
    assert len({record.prompt for record in records}) == 3000
    lengths = [record.output_tokens for record in records]
    assert min(lengths) >= 3
    assert max(lengths) <= 512
    assert np.quantile(lengths, [0.1, 0.5, 0.9]).tolist() == pytest.approx([17, 106, 278], rel=0.02)


def test_it_is_as_predictable_as_vicunas_answers():
    records, attainable = generate(6000, seed=0, samples=SAMPLES)
    prompts = labels(records)
    assert (len(records), len(prompts)) == (12_000, 6000)
    train, test = prompts.take(4000), prompts.skip(4000)
    lengths = observed(test)
    assert tau_b(tfidf_ridge(train, "geometric_mean", test), lengths) == pytest.approx(
        0.52, abs=0.02
    )
    assert attainable == pytest.approx(0.61, abs=0.02)
    assert tau_b([second for _, second in lengths_of(test)], lengths) == pytest.approx(
        0.64, abs=0.02
    )


def test_a_manner_shifts_a_long_task_more_than_a_short_one():
    records, _ = generate(20_000, seed=0)
    briefly, fully = min(MANNERS, key=MANNERS.__getitem__), max(MANNERS, key=MANNERS.__getitem__)

    def mean(task: str, manner: str) -> float:
        ends = [r for r in records if r.prompt.startswith(task) and r.prompt.endswith(f"{manner}.")]
        return sum(record.output_tokens for record in ends) / len(ends)

    long, short = max(TASKS, key=TASKS.__getitem__), min(TASKS, key=TASKS.__getitem__)
    assert mean(long, fully) / mean(long, briefly) > 3 * mean(short, fully) / mean(short, briefly)
