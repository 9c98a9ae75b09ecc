"""Training objectives: a function each, and the table of their names. Tensors in, scalar out.

Shapes: B prompts of a batch, P pairs. Scores are float32, higher = longer; lengths are tokens, > 0.
Every loss is a mean, so its scale does not depend on the batch size.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from training.config import LossConfig


def margin_ranking_loss(longer_P: Tensor, shorter_P: Tensor, margin: float) -> Tensor:
    """Mean over pairs of max(0, margin - (score of the longer - score of the shorter)).

    Source: PARS, the margin ranking loss on explicit pairs (its margin is 1).
    """
    return functional.relu(margin - (longer_P - shorter_P)).mean()


def all_pairs_margin_loss(
    scores_B: Tensor, lengths_B: Tensor, *, delta: float, margin: float
) -> Tensor:
    """`margin_ranking_loss` over every pair of the batch with a relative length gap >= `delta`.

    O(B^2) on scalars, but one encoder pass per prompt, not two per pair. 0 without such a pair.
    """
    return _over_pairs(scores_B, lengths_B, delta, lambda gaps: functional.relu(margin - gaps))


def ranknet_loss(scores_B: Tensor, lengths_B: Tensor, *, delta: float) -> Tensor:
    """Mean over the same pairs of log(1 + exp(-(longer's score - shorter's score))), in nats.

    Source: Burges et al. 2005, Learning to Rank using Gradient Descent, equation 3.
    """
    return _over_pairs(scores_B, lengths_B, delta, lambda gaps: functional.softplus(-gaps))


def listmle_loss(scores_B: Tensor, lengths_B: Tensor) -> Tensor:
    """Negative log-likelihood of the order by length, longest first, under Plackett-Luce.

    The batch is one list; the sum over its positions is divided by B. Ties keep input order.

    Source: Xia et al. 2008, Listwise Approach to Learning to Rank, section 4.3.
    """
    ordered = scores_B[torch.argsort(lengths_B, descending=True, stable=True)]
    return (torch.logcumsumexp(ordered.flip(0), dim=0).flip(0) - ordered).mean()


def _over_pairs(
    scores_B: Tensor, lengths_B: Tensor, delta: float, cost: Callable[[Tensor], Tensor]
) -> Tensor:
    gap_BB = lengths_B[:, None] - lengths_B[None, :]
    larger_BB = torch.maximum(lengths_B[:, None], lengths_B[None, :])
    is_longer_BB = (gap_BB > 0) & (gap_BB >= delta * larger_BB)
    score_gaps = (scores_B[:, None] - scores_B[None, :])[is_longer_BB]
    return cost(score_gaps).mean() if score_gaps.numel() else scores_B.sum() * 0.0


LOSSES: Final[dict[str, Callable[[Tensor, Tensor, LossConfig], Tensor]]] = {
    "all-pairs": lambda s, n, of: all_pairs_margin_loss(s, n, delta=of.delta, margin=of.margin),
    # Pointwise: in tokens, the baseline of PARS; in nats, without the dominance of long responses.
    "l1": lambda s, n, of: (s - n).abs().mean(),
    "log-l1": lambda s, n, of: (s - n.log()).abs().mean(),
    "listmle": lambda s, n, of: listmle_loss(s, n),
    "ranknet": lambda s, n, of: ranknet_loss(s, n, delta=of.delta),
}
"""Objective -> loss of (scores, lengths, settings); a new loss is one more entry. Beside these,
`pairs` is `margin_ranking_loss` on pairs that the data module draws."""
