"""Scores of prompts before they are routed: by a bundle in this process, or by the service."""

import asyncio
from collections import Counter
from math import isfinite

from lengthwise.errors import ConfigError
from scheduler_adapters.workload.score_sources import BundleScores
from scoring_service.client.fail_open import FailOpenScorer

Found = tuple[float, tuple[tuple[float, float], ...]]
"""Score, and quantiles of the predicted length."""


class RoutingScores:
    """A score, or None at the deadline; failures are counted and never raised.

    `source`: service:HOST:PORT or bundle:PATH, or None for no scores.
    """

    def __init__(self, source: str | None, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.counts: Counter[str] = Counter()
        """Requests by outcome: "scored", or the reason for no score."""
        kind, _, place = (source or "").partition(":")
        if source and not (kind in ("service", "bundle") and place):
            raise ConfigError(f"scorer is {source!r}; use service:HOST:PORT or bundle:PATH")
        self.service = FailOpenScorer(place, budget_s=deadline_s) if kind == "service" else None
        self.bundle = BundleScores(place) if kind == "bundle" else None

    async def of(self, prompt: object) -> Found | None:
        """Return the score of a text, or None."""
        if not (isinstance(prompt, str) and prompt and (self.service or self.bundle)):
            return None
        try:
            found = await asyncio.wait_for(self._score(prompt), self.deadline_s)
            outcome = "scored" if isfinite(found[0]) else "not_finite"
        except Exception as error:  # no request fails for want of a score
            found, outcome = (0.0, ()), type(error).__name__
        self.counts[outcome] += 1
        return found if outcome == "scored" else None

    async def _score(self, prompt: str) -> Found:
        if self.service is None:
            assert self.bundle is not None
            return (await asyncio.to_thread(self.bundle.score_prompts, [prompt])).values.item(), ()
        answer = await self.service.ask_async(prompt)
        if answer.score is None:
            raise TimeoutError(answer.outcome)
        return answer.score.value, tuple(sorted(answer.score.quantiles.items()))
