"""Baselines: fitted on the training prompts only, one value per prompt, higher = longer."""

import numpy as np
import pytest

from lengthwise.agreement import tau_b
from training.data.labels import LabelledPrompt, observed
from training.data.synthetic import generate
from training.evaluation.baselines import group_means, tfidf_ridge

ITEMS = [
    LabelledPrompt(
        prompt=r.prompt, model="m", lengths=(r.output_tokens,), group=r.prompt.split()[0]
    )
    for r in generate(600, seed=4)[0]
]
TRAIN, TEST = ITEMS[:400], ITEMS[400:]


@pytest.mark.parametrize("baseline", [tfidf_ridge, group_means])
def test_a_fitted_baseline_ranks_unseen_synthetic_prompts(baseline) -> None:  # type: ignore[no-untyped-def]
    assert tau_b(baseline(TRAIN, "first", TEST), observed(TEST)) > 0.35


def test_group_means_are_of_logs_and_an_unknown_group_gets_the_mean_of_all() -> None:
    def item(group: str, *lengths: int) -> LabelledPrompt:
        return LabelledPrompt(prompt=group, model="", lengths=lengths, group=group)

    train = [item("a", 10), item("a", 1000), item("b", 4, 16)]
    found = group_means(train, "geometric_mean", [item("a", 1), item("b", 1), item("c", 1)])
    logs = np.log([10, 1000, 8])
    assert found == pytest.approx([logs[:2].mean(), logs[2], logs.mean()])
    first = group_means(train, "first", [item("b", 1)])
    assert first == pytest.approx([np.log(4)])
