"""The Python that README and guides show runs as it stands there."""

import re
import sys
from pathlib import Path

import pytest

from scheduler_adapters.checks import check_policy
from scheduler_adapters.policy import Policy
from scheduler_adapters.views import Rank
from scoring_service.ranker.model import RankerModel, score_texts
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig

ROOT = Path(__file__).resolve().parents[2]


def python_of(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), flags=re.M | re.S)


def test_the_policy_of_readme_and_guide_keeps_every_law():
    (short,), (whole,) = python_of("README.md"), python_of("docs/guides/own-policy.md")
    assert short in whole
    for block in (short, whole):
        names: dict[str, object] = {"Policy": Policy, "Rank": Rank}
        exec(block, names)
        assert check_policy(names["ShortestPrompt"])


def test_the_client_of_the_guide_gets_its_scores(tiny_bundle, capsys):
    block, *_ = python_of("docs/guides/serving.md")
    block = block.replace("timeout_s=1.0", "timeout_s=60").replace("budget_s=0.05", "budget_s=60")
    server = ScoringServer(RankerModel.load(tiny_bundle), ServerConfig(address="127.0.0.1:0"))
    server.start()
    names: dict[str, object] = {}
    exec(block.replace("127.0.0.1:50051", server.target), names)
    server.stop()
    assert float(capsys.readouterr().out)
    assert names["score"] is not None


def test_a_bundle_is_scored_from_outside_as_the_guide_shows(tiny_bundle, capsys):
    (block,) = python_of("docs/guides/bundle.md")
    exec(block.replace("run/bundle", str(tiny_bundle.path)), {})
    shown = [line.split(" ", 1) for line in capsys.readouterr().out.splitlines()]
    scores = score_texts(tiny_bundle.path, [prompt for _, prompt in shown])
    assert [float(score) for score, _ in shown] == pytest.approx(scores, abs=1e-3)


@pytest.mark.slow
def test_the_scheduler_of_the_guide_is_known_to_transformers():
    *_, block = python_of("docs/guides/serving.md")
    names: dict[str, object] = {}
    exec(block, names)
    assert names["config"].scheduler_type == names["name"]
    scheduler = sys.modules["transformers.generation.continuous_batching.scheduler"]
    assert names["name"] in scheduler.SCHEDULER_MAPPING
