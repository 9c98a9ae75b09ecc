"""A service whose bundle may be rewritten, and the outcomes of its reloads."""

import pytest

from lengthwise.bundle import ModelBundle
from scoring_service.ranker.model import RankerModel
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import ScoringService


@pytest.fixture
def folder(write_bundle, tmp_path):
    return write_bundle(tmp_path / "bundle").path


@pytest.fixture
def service(folder):
    model = RankerModel.load(ModelBundle.load(folder))
    return ScoringService(model, ServerConfig(address="127.0.0.1:0"))


@pytest.fixture
def outcomes():
    return []
