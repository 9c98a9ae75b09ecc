"""Clients of the scoring service: synchronous, asyncio, and fail-open (a score or None).

Start with `scoring_client.py`; `fail_open.py` is for a scheduler's hot path.
"""

from scoring_service.client.channel import ClientSecurity
from scoring_service.client.codec import Observed, Score, ServiceInfo
from scoring_service.client.fail_open import FailOpenScorer
from scoring_service.client.scoring_client import AsyncScoringClient, ScoringClient

__all__ = [
    "AsyncScoringClient",
    "ClientSecurity",
    "FailOpenScorer",
    "Observed",
    "Score",
    "ScoringClient",
    "ServiceInfo",
]
