"""Baselines: fitted on the training prompts only, one value per prompt, higher = longer."""

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.agreement import tau_b
from tests.training.drawn import generate
from tests.training.prompts import PromptResponse, labelled, labels
from training.data.labels import observed
from training.evaluation.baselines import group_means, tfidf_ridge


@pytest.mark.parametrize("baseline", [tfidf_ridge, group_means])
def test_a_fitted_baseline_ranks_unseen_synthetic_prompts(baseline):  # type: ignore[no-untyped-def]
    items = labels(replace(r, group=r.prompt.split()[0]) for r in generate(600, seed=4)[0])
    train, test = items.take(400), items.skip(400)
    assert tau_b(baseline(train, "first", test), observed(test)) > 0.35


SCRIPTS = {"写雨短": 10, "اكتب": 20, "लिखो": 40, "😀🇩🇪": 80, "x+=": 160}
"""Text -> length of the answers to prompts that hold it beside a word of their own."""


def test_prompts_of_unrepeated_words_are_ranked_by_characters():
    items = labelled(
        {
            f"{n * 7919:x}{text}{n:x}": (tokens,)
            for n in range(60)
            for text, tokens in SCRIPTS.items()
        }
    )
    train, test = items.take(200), items.skip(200)
    assert tau_b(tfidf_ridge(train, "first", test), observed(test)) > 0.8


def test_prompts_without_any_word_are_ranked():
    items = labelled({"😀" * n + "🙃": (n,) for n in range(1, 91)})
    train, test = items.take(60), items.skip(60)
    assert tau_b(tfidf_ridge(train, "first", test), observed(test)) > 0.5


def test_characters_count_only_if_half_of_the_words_are_unknown():
    train = labelled({"ab ab": (5,), "cd cd cd cd": (11,)})
    for tested, is_ignored in (["ab cd cdx", "ab cd abx"], True), (["ab cdx", "ab abx"], False):
        first, second = tfidf_ridge(train, "first", labelled({each: (1,) for each in tested}))
        assert (first == second) == is_ignored


def test_group_means_are_of_logs_and_unknown_groups_get_the_mean():
    lengths = {"a 0": (10,), "a 1": (1000,), "b": (4, 16)}
    train, tested = (
        labels(
            PromptResponse(prompt=prompt, output_tokens=n, sample=number, group=prompt[0])
            for prompt, samples in rows.items()
            for number, n in enumerate(samples)
        )
        for rows in (lengths, {name: (1,) for name in "abc"})
    )
    found = group_means(train, "geometric_mean", tested)
    logs = np.log([10, 1000, 8])
    assert found == pytest.approx([logs[:2].mean(), logs[2], logs.mean()])
    assert group_means(train, "first", tested.select([1])) == pytest.approx([np.log(4)])
