"""Clients of the scoring service: one that raises, and fail-open (a score or None, also asyncio).

Start with `scoring_client.py`; `fail_open.py` is for a scheduler's hot path.
"""

from scoring_service.client.channel import ClientSecurity
from scoring_service.client.codec import Observed, Score, ServiceInfo
from scoring_service.client.fail_open import FailOpenScorer
from scoring_service.client.scoring_client import ScoringClient

__all__ = ["ClientSecurity", "FailOpenScorer", "Observed", "Score", "ScoringClient", "ServiceInfo"]
