"""One function per training objective. Tensors in, scalar out.

Shapes: B prompts of a batch, P pairs. Scores are float32, higher = longer; lengths are tokens, > 0.
Every loss is a mean, so its scale does not depend on the batch size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def margin_ranking_loss(longer_P: Tensor, shorter_P: Tensor, margin: float) -> Tensor:
    """max(0, margin - (score of the longer - score of the shorter)), mean over pairs.

    Source: PARS, the margin ranking loss on explicit pairs (its margin is 1).
    """
    return functional.relu(margin - (longer_P - shorter_P)).mean()


def all_pairs_margin_loss(
    scores_B: Tensor, lengths_B: Tensor, *, delta: float, margin: float
) -> Tensor:
    """The same over every pair of the batch whose relative length gap is at least `delta`.

    O(B^2) on scalars, but one encoder pass per prompt instead of two per pair. 0 where no pair
    qualifies.
    """
    differences = (scores_B[:, None] - scores_B[None, :])[_is_longer(lengths_B, delta)]
    if differences.numel() == 0:
        return scores_B.sum() * 0.0
    return functional.relu(margin - differences).mean()


def ranknet_loss(scores_B: Tensor, lengths_B: Tensor, *, delta: float) -> Tensor:
    """log(1 + exp(-(score of the longer - score of the shorter))) over the same pairs, in nats.

    Source: Burges et al. 2005, Learning to Rank using Gradient Descent, equation 3.
    """
    differences = (scores_B[:, None] - scores_B[None, :])[_is_longer(lengths_B, delta)]
    if differences.numel() == 0:
        return scores_B.sum() * 0.0
    return functional.softplus(-differences).mean()


def listmle_loss(scores_B: Tensor, lengths_B: Tensor) -> Tensor:
    """Negative log-likelihood of the order by length, longest first, under Plackett-Luce.

    The batch is one list; the sum over its positions is divided by B. Ties keep input order.

    Source: Xia et al. 2008, Listwise Approach to Learning to Rank, section 4.3.
    """
    ordered = scores_B[torch.argsort(lengths_B, descending=True, stable=True)]
    rest = torch.logcumsumexp(ordered.flip(0), dim=0).flip(0)
    return (rest - ordered).mean()


def l1_loss(scores_B: Tensor, lengths_B: Tensor) -> Tensor:
    """|score - length|, both in tokens: the pointwise baseline of PARS."""
    return (scores_B - lengths_B).abs().mean()


def log_l1_loss(scores_B: Tensor, lengths_B: Tensor) -> Tensor:
    """|score - log(length)|, in nats: pointwise without the pull of the few longest responses."""
    return (scores_B - lengths_B.log()).abs().mean()


def _is_longer(lengths_B: Tensor, delta: float) -> Tensor:
    """(B, B) mask: row longer than column by a relative gap >= delta, and not equal."""
    gap = lengths_B[:, None] - lengths_B[None, :]
    larger = torch.maximum(lengths_B[:, None], lengths_B[None, :])
    return (gap > 0) & (gap >= delta * larger)
