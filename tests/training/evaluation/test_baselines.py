"""Baselines: fitted on the training prompts only, one value per prompt, higher = longer."""

import numpy as np
import pytest

from lengthwise.agreement import tau_b
from training.data.labels import LabelledPrompt, observed
from training.data.synthetic import generate
from training.evaluation.baselines import group_means, tfidf_ridge


def item(prompt: str, *lengths: int, group: str = "") -> LabelledPrompt:
    return LabelledPrompt(prompt=prompt, model="", lengths=lengths, group=group)


ITEMS = [
    item(r.prompt, r.output_tokens, group=r.prompt.split()[0]) for r in generate(600, seed=4)[0]
]
TRAIN, TEST = ITEMS[:400], ITEMS[400:]


@pytest.mark.parametrize("baseline", [tfidf_ridge, group_means])
def test_a_fitted_baseline_ranks_unseen_synthetic_prompts(baseline):  # type: ignore[no-untyped-def]
    assert tau_b(baseline(TRAIN, "first", TEST), observed(TEST)) > 0.35


SCRIPTS = {"写雨短": 10, "اكتب": 20, "लिखो": 40, "😀🇩🇪": 80, "x+=": 160}
"""Text -> length of the answers to prompts that hold it beside a word of their own."""


def test_prompts_whose_words_never_repeat_are_ranked_by_their_characters():
    items = [
        item(f"{n * 7919:x}{text}{n:x}", tokens)
        for n in range(60)
        for text, tokens in SCRIPTS.items()
    ]
    assert tau_b(tfidf_ridge(items[:200], "first", items[200:]), observed(items[200:])) > 0.8


def test_prompts_without_any_word_are_ranked():
    items = [item("😀" * (n % 9 + 1) + "🙃", n % 9 + 1) for n in range(90)]
    assert tau_b(tfidf_ridge(items[:60], "first", items[60:]), observed(items[60:])) > 0.5


def test_characters_count_only_where_at_most_half_of_the_words_are_known():
    train = [item("ab ab", 5), item("cd cd cd cd", 11)]
    for tested, is_ignored in (["ab cd cdx", "ab cd abx"], True), (["ab cdx", "ab abx"], False):
        first, second = tfidf_ridge(train, "first", [item(each, 1) for each in tested])
        assert (first == second) == is_ignored


def test_group_means_are_of_logs_and_an_unknown_group_gets_the_mean_of_all():
    train = [item("", *n, group=name) for name, *n in (("a", 10), ("a", 1000), ("b", 4, 16))]
    tested = [item("", 1, group=name) for name in "abc"]
    found = group_means(train, "geometric_mean", tested)
    logs = np.log([10, 1000, 8])
    assert found == pytest.approx([logs[:2].mean(), logs[2], logs.mean()])
    assert group_means(train, "first", tested[1:2]) == pytest.approx([np.log(4)])
