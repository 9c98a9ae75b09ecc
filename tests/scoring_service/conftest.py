import signal
from contextlib import ExitStack

import pytest

from lengthwise.bundle import ModelBundle
from scoring_service.client import ScoringClient
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import ScoringService


@pytest.fixture(scope="session")
def tiny_model(tiny_bundle):
    return RankerModel.load(tiny_bundle)


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


@pytest.fixture
def serve(tiny_model):
    """A function that starts a server with settings; every server stops at the end."""
    with ExitStack() as running:

        def start(**settings: object) -> ScoringServer:
            config = ServerConfig(**{"address": "127.0.0.1:0"} | settings)
            server = ScoringServer(tiny_model, config)
            running.callback(server.stop)
            server.start()
            return server

        yield start


@pytest.fixture
def server(serve):
    return serve(max_prompt_bytes=1000, max_batch_prompts=8, max_message_bytes=4000)


@pytest.fixture
def client(server):
    with ScoringClient(server.target, timeout_s=60) as client:
        yield client


@pytest.fixture(autouse=True)
def usual_signals():
    """Handlers of the test process, which a command may replace."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)
