"""Losses against examples worked on paper, and laws that hold for all of them."""

import math

import pytest
import torch
from torch import tensor

from training.config import LossConfig
from training.ranker.losses import (
    LOSSES,
    all_pairs_margin_loss,
    listmle_loss,
    margin_ranking_loss,
    ranknet_loss,
)

LENGTHS = tensor([100.0, 110.0, 200.0])
SCORES = tensor([0.5, 0.0, 1.2])


def test_margin_ranking_of_a_worked_example():
    # Wins by 0.7, by -0.5 and by 2: (0.3 + 1.5 + 0) / 3.
    loss = margin_ranking_loss(tensor([1.2, 0.0, 2.0]), tensor([0.5, 0.5, 0.0]), 1.0)
    assert loss.item() == pytest.approx(0.6)


def test_all_pairs_of_a_worked_example():
    # Longer minus shorter: 1.2-0.5, 1.2-0 (gaps .5, .45) and 0-0.5 (gap .09, under delta .2).
    every = all_pairs_margin_loss(SCORES, LENGTHS, delta=0.0, margin=1.0)
    assert every.item() == pytest.approx((0.3 + 0.0 + 1.5) / 3)
    filtered = all_pairs_margin_loss(SCORES, LENGTHS, delta=0.2, margin=1.0)
    assert filtered.item() == pytest.approx((0.3 + 0.0) / 2)


def test_ranknet_of_a_worked_example():
    loss = ranknet_loss(SCORES, LENGTHS, delta=0.2)
    expected = (math.log1p(math.exp(-0.7)) + math.log1p(math.exp(-1.2))) / 2
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_listmle_of_a_worked_example():
    # The order is 1.2, 0.0, 0.5: choose the first among three, the second among the last two.
    first = math.log(math.exp(1.2) + math.exp(0.0) + math.exp(0.5)) - 1.2
    second = math.log(math.exp(0.0) + math.exp(0.5)) - 0.0
    assert listmle_loss(SCORES, LENGTHS).item() == pytest.approx((first + second) / 3, rel=1e-6)


def test_pointwise_losses_of_a_worked_example():
    in_tokens, in_nats = (LOSSES[name] for name in ("l1", "log-l1"))
    off = tensor([90.0, 120.0, 200.0])
    assert in_tokens(off, LENGTHS, LossConfig()).item() == pytest.approx(20 / 3)
    assert in_nats(LENGTHS.log() + 0.5, LENGTHS, LossConfig()).item() == pytest.approx(
        0.5, rel=1e-5
    )


RANKING = [
    lambda s, n: all_pairs_margin_loss(s, n, delta=0.2, margin=1.0),
    lambda s, n: ranknet_loss(s, n, delta=0.2),
    listmle_loss,
]


@pytest.mark.parametrize("loss", RANKING)
def test_the_right_order_costs_less_than_the_wrong_one(loss):  # type: ignore[no-untyped-def]
    lengths = tensor([10.0, 20.0, 40.0, 80.0])
    right = tensor([0.0, 1.0, 2.0, 3.0])
    assert loss(right, lengths) < loss(-right, lengths)


@pytest.mark.parametrize("loss", RANKING)
def test_ranking_losses_do_not_see_a_shift_or_the_batch_order(loss):  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    scores, lengths = torch.randn(16), torch.randperm(500)[:16].float() + 1
    shuffle = torch.randperm(16)
    expected = loss(scores, lengths).item()
    assert loss(scores + 5, lengths).item() == pytest.approx(expected, rel=1e-4)
    assert loss(scores[shuffle], lengths[shuffle]).item() == pytest.approx(expected, rel=1e-4)


def test_a_batch_without_a_pair_costs_nothing_and_has_a_gradient():
    scores = torch.zeros(4, requires_grad=True)
    for loss in RANKING[:2]:
        value = loss(scores, torch.full((4,), 7.0))
        value.backward()
        assert value.item() == 0.0
