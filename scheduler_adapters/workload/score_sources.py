"""Scores of requests: from a scoring service, a bundle, or drawn with a given tau-b.

A score is higher for a longer response. Without one (NaN) a request ranks by the median of others.

    requests = requests.with_scores(synthetic_scores(requests.output_tokens, tau_b=0.75))
    requests = read_trace("with_prompts.parquet", scorer=open_prompt_scorer("bundle:run/bundle"))
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, pi, sin, sqrt
from os import PathLike
from statistics import NormalDist
from typing import Annotated, Final, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lengthwise import agreement
from lengthwise.bundle import ModelBundle
from lengthwise.errors import ConfigError, ScoringError, raised_as
from lengthwise.settings import Range, checked
from scheduler_adapters.policy import Policy
from scheduler_adapters.workload.arrivals import SCORE_STREAM
from scheduler_adapters.workload.requests import Floats, Ints, Requests, no_quantiles
from scoring_service.client import Score, ScoringClient

log = logging.getLogger(__name__)
_CORRECTIONS = 6
_PATIENT_S = 60.0
"""Deadline of a batch of prompts before a run."""

TauB = Annotated[float, Range(least=-1, most=1)]


@checked
def synthetic_scores(lengths: Ints, *, tau_b: TauB, seed: int = 0) -> Floats:
    """Draw scores (N,) whose Kendall tau-b with `lengths` is `tau_b`, within .002 for N >= 2,000.

    A Gaussian copula over the ranks of the lengths: rho = sin(pi * tau / 2), corrected on the same
    noise until the achieved tau-b is right. Ties can make a very high tau-b impossible.
    """
    noise = np.random.default_rng((seed, SCORE_STREAM)).standard_normal(len(lengths))
    normal = _normal_scores(lengths)
    has_order = len(np.unique(lengths)) > 1
    # The closed form holds for n -> infinity without ties: correct it by its error here.
    asked, best, best_error = tau_b, np.empty(0), inf
    for _ in range(_CORRECTIONS):
        rho = sin(pi * asked / 2)
        values = rho * normal + sqrt(1 - rho * rho) * noise
        error = achieved_tau_b(values, lengths) - tau_b if has_order else 0.0
        if abs(error) < best_error:
            best, best_error = values, abs(error)
        asked = min(1.0, max(-1.0, asked - error))
    return best


_FRACTIONS: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles of a bundle's calibration."""
_LEAST_NEIGHBOURS, _MOST_NEIGHBOURS = 33, 201


def with_lengths(requests: Requests, policy: Policy) -> Requests:
    """Return the requests with quantiles of the length, for a policy that reads them.

    They are calibrated on the same requests: the lengths of a twentieth of them (33 to 201), with
    the nearest scores. True lengths predict themselves. Without a score there is no prediction.
    """
    known = np.flatnonzero(np.isfinite(requests.score) & (requests.score_delay_s == 0))
    order = known[np.argsort(requests.score[known], kind="stable")]
    lengths, quantiles = requests.output_tokens[order], no_quantiles(len(requests))
    if not len(order) or not policy.traits.reads_lengths:
        return requests
    if np.array_equal(requests.score[order], lengths):
        tokens = np.repeat(lengths[:, None], len(_FRACTIONS), axis=1)
    else:
        near = min(len(order), max(_LEAST_NEIGHBOURS, min(len(order) // 20, _MOST_NEIGHBOURS)))
        first = np.clip(np.arange(len(order)) - near // 2, 0, len(order) - near)
        tokens = np.quantile(sliding_window_view(lengths, near)[first], _FRACTIONS, axis=1).T
    for row, of_one in zip(order.tolist(), tokens.tolist(), strict=True):
        quantiles[row] = tuple(zip(_FRACTIONS, of_one, strict=True))
    return replace(requests, quantiles=quantiles)


def achieved_tau_b(scores: Floats, lengths: Ints) -> float:
    """Return Kendall's tau-b of scores and true lengths, in [-1, 1]; NaN scores are left out."""
    known = ~np.isnan(scores)
    return agreement.tau_b(scores[known], lengths[known])


def _normal_scores(lengths: Ints) -> Floats:
    _, first_group, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    quantile = NormalDist().inv_cdf
    group_scores = np.array([quantile((rank - 0.5) / len(lengths)) for rank in mean_rank])
    return np.asarray(group_scores[first_group])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PromptScores:
    """Scores and lengths of N prompts; NaN for a missing one."""

    values: Floats
    """Scores, higher = longer."""
    prompt_tokens: Floats
    """Tokens by the ranker's tokenizer, which differs from that of the served model."""


class PromptScorer(Protocol):
    """A ranker: a bundle in this process, or a service."""

    def score_prompts(self, prompts: Sequence[str]) -> PromptScores: ...


def open_prompt_scorer(name: str) -> PromptScorer:
    """Load a ModelBundle (`bundle:PATH`), or connect to a running service (`service:HOST:PORT`).

    Raises ConfigError for another name, and as `BundleScores`.
    """
    kind, _, place = name.partition(":")
    if kind == "bundle" and place:
        return BundleScores(place)
    if kind == "service" and place:
        return ServiceScores(place, timeout_s=_PATIENT_S)
    raise ConfigError(f"{name!r} scores no prompts; use bundle:PATH or service:HOST:PORT")


class BundleScores:
    """A trained ranker in this process; an empty prompt has no score.

    Raises ConfigError without onnxruntime and tokenizers, and BundleError for a damaged bundle.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        why = (
            f"bundle {path} cannot be run here ({{}}); install the extra 'serve', or use "
            "service:HOST:PORT"
        )
        # A scheduler with a service only has no model runtime.
        with raised_as(ConfigError, why, ImportError):
            from tokenizers import Tokenizer

            from scoring_service.ranker.model import RankerModel
        bundle = ModelBundle.load(path)
        self.model = RankerModel.load(bundle)
        self.whole_tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
        self.whole_tokenizer.no_truncation()
        self.whole_tokenizer.no_padding()

    def score_prompts(self, prompts: Sequence[str]) -> PromptScores:
        """Return scores (N,), and the tokens of whole prompts, unread parts included."""
        values, tokens = np.full((2, len(prompts)), np.nan)
        given = [row for row, prompt in enumerate(prompts) if prompt]
        texts = [prompts[row] for row in given]
        values[given] = self.model.score_texts(texts)
        tokens[given] = [len(whole) for whole in self.whole_tokenizer.encode_batch_fast(texts)]
        return PromptScores(values=values, prompt_tokens=tokens)


class ServiceScores:
    """A scoring service with a deadline; the first failure is logged."""

    def __init__(self, target: str, *, timeout_s: float = 1.0) -> None:
        self.client = ScoringClient(target, timeout_s=timeout_s)

    def score_prompts(self, prompts: Sequence[str]) -> PromptScores:
        """Return scores (N,), and the tokens of each prompt that the ranker reads."""
        results = self.client.score_batch(prompts)
        values, tokens = np.full((2, len(prompts)), np.nan)
        failure: Score | ScoringError | None = None
        for row, result in enumerate(results):
            if isinstance(result, Score):
                tokens[row], values[row] = result.prompt_tokens, result.value
            if not isfinite(values[row]):
                values[row], failure = np.nan, failure or result
        if failure is not None:
            text = "no score from %s (%s): requests without a score are ranked by the median"
            log.warning(text, self.client.target, failure)
        return PromptScores(values=values, prompt_tokens=tokens)
