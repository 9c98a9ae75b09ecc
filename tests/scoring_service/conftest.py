from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from lengthwise.bundle import ModelBundle
from scoring_service.client import ScoringClient
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Undo what an entry point does to it: its stream ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="session")
def tiny_model(tiny_bundle: ModelBundle) -> RankerModel:
    return RankerModel.load(tiny_bundle)


@pytest.fixture
def server(tiny_model: RankerModel) -> Iterator[ScoringServer]:
    config = ServerConfig(
        address="127.0.0.1:0", max_prompt_bytes=1000, max_batch_prompts=8, max_message_bytes=4000
    )
    server = ScoringServer(tiny_model, config)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server: ScoringServer) -> Iterator[ScoringClient]:
    with ScoringClient(server.target, timeout_s=60) as client:
        yield client
