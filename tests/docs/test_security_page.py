"""docs/security.md: each threat names a test, and each of these is there."""

import re
from pathlib import Path

from scheduler_adapters.engines.vllm_v1.request_scores import ScoreConfig
from scoring_service.service.config import ServerConfig

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/security.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of each row of the table under a heading."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_threat_names_a_test_that_exists():
    files = [*(ROOT / "tests").rglob("test_*.py")]
    there = {name for f in files for name in re.findall(r"^def (test_\w+)", f.read_text(), re.M)}
    threats = rows("Threats")
    assert len(threats) > 15
    for threat, defence, tests in threats:
        named = re.findall(r"`(test_\w+)`", tests)
        assert all((threat, defence, named)), threat
        assert set(named) <= there, f"{threat}: {set(named) - there}"


def test_the_defaults_on_the_page_are_those_of_the_service():
    config = ServerConfig()
    page = " ".join(" ".join(row) for row in rows("Defaults, and how to open each"))
    for shown in (
        f"{config.arrival_timeout_s:.0f} seconds",
        f"{config.max_connections} connections, {config.max_connection_calls} calls on each",
        f"{config.max_concurrent_calls} calls at once, {config.max_arriving_calls} without",
        f"{config.max_waiting_bytes >> 20} MiB",
        f"{config.max_prompt_bytes >> 20} MiB",
        f"{ScoreConfig().max_scores_per_key} scores under way for one API key",
    ):
        assert shown in page, shown
    assert config.token_file is config.report_token_file is config.metrics_address is None
