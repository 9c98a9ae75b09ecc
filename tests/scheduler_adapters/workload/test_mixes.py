"""Named lengths: fits keep the figures of their sources."""

import numpy as np
import pytest

from scheduler_adapters.workload.mixes import MIXES, draw_lengths


@pytest.mark.parametrize("name", ["alpaca-eval", "arena-hard"])
def test_most_chats_have_fewer_than_a_thousand_reasoning_tokens(name):
    assert (draw_lengths(name, 20_000, seed=0).reasoning_tokens < 1000).mean() > 0.7


@pytest.mark.parametrize("name", MIXES)
def test_drawn_lengths_have_the_medians_of_their_fit(name):
    requests = draw_lengths(name, 20_000, seed=1)
    answer = requests.output_tokens - requests.reasoning_tokens
    drawn = (requests.prompt_tokens, requests.reasoning_tokens, answer)
    for tokens, (median, _) in zip(drawn, MIXES[name], strict=True):
        assert np.median(tokens) == pytest.approx(median, rel=0.05)
        assert tokens.min() >= 1


def test_chats_have_their_medians_and_no_reasoning():
    requests = draw_lengths("chat", 20_000, seed=1)
    assert np.median(requests.prompt_tokens) == pytest.approx(200, rel=0.05)
    assert np.median(requests.output_tokens) == pytest.approx(160, rel=0.05)
    assert requests.output_tokens.max() <= 4096
    assert not requests.reasoning_tokens.any()


def test_the_half_heavy_mix_has_half_of_each():
    median = np.median(draw_lengths("half-reasoning-heavy", 20_000, seed=0).reasoning_tokens)
    chats, heavy = (MIXES[name][1][0] for name in ("arena-hard", "reasoning-heavy"))
    assert chats < median < heavy


@pytest.mark.parametrize("name", ["alpaca-eval", "half-reasoning-heavy"])
def test_a_seed_is_one_sequence_of_lengths(name):
    first, same, other = (draw_lengths(name, 50, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.output_tokens, same.output_tokens)
    assert (first.output_tokens != other.output_tokens).any()
