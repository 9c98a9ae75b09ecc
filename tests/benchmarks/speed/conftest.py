"""The fixtures of the scoring service, which benchmarks start as its own tests do."""

from tests.scoring_service.conftest import client, serve, server, tiny_model  # noqa: F401
