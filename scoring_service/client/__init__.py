"""Clients of the scoring service: synchronous, asyncio, and fail-open (a score or None).

Start with `sync.py`; `fail_open.py` is for a scheduler's hot path.
"""

from scoring_service.client.async_client import AsyncScoringClient
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.codec import Observed, Score, ServiceInfo
from scoring_service.client.fail_open import FailOpenScorer
from scoring_service.client.sync import ScoringClient

__all__ = [
    "AsyncScoringClient",
    "ClientSecurity",
    "FailOpenScorer",
    "Observed",
    "Score",
    "ScoringClient",
    "ServiceInfo",
]
