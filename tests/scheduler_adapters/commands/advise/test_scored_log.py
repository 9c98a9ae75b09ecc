"""Evidence of a log: prompts stay with their requests, and only unseen ones are scored."""

import json
import subprocess
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lengthwise.errors import ConfigError, DataError
from lengthwise.tables.options import TraceOptions
from scheduler_adapters.commands.advise import scored_log as evidence
from scheduler_adapters.commands.advise.scored_log import requests_and_prompts, train, with_scores

COUNT = 30


@pytest.fixture
def log(tmp_path):
    """Chats of an OpenAI-style gateway, the last one first."""
    path = tmp_path / "gateway.jsonl"
    with path.open("w") as written:
        for number in reversed(range(COUNT)):
            messages = [{"role": "user", "content": f"Prompt  Number {number}"}]
            usage = {"prompt_tokens": 5, "completion_tokens": number + 1}
            response = {"created": 1_760_000_000 + number, "usage": usage}
            row = {"request": {"messages": messages}, "response": response}
            written.write(json.dumps(row) + "\n")
    return path


def test_requests_come_by_arrival_each_with_its_own_prompt(log):
    requests, prompts = requests_and_prompts([str(log)], TraceOptions(), needs_prompts=True)
    assert requests.output_tokens.tolist() == list(range(1, COUNT + 1))
    assert requests.arrival_s.tolist() == list(range(COUNT))
    assert prompts.tolist() == [f"Prompt  Number {number}" for number in range(COUNT)]
    assert np.isnan(requests.score).all()
    unread = requests_and_prompts([str(log)], TraceOptions(), needs_prompts=False)[1]
    assert unread.tolist() == [""] * COUNT


def test_only_test_prompts_are_scored_however_they_are_written(log, tmp_path, tiny_bundle):
    requests, prompts = requests_and_prompts([str(log)], TraceOptions(), needs_prompts=True)
    bundle = tmp_path / "run" / "bundle"
    bundle.parent.mkdir()
    bundle.symlink_to(tiny_bundle.path)
    found = with_scores(requests, prompts, bundle)  # trained elsewhere
    assert np.isfinite(found.requests.score).all()
    assert found.num_prompts == COUNT
    kept = pd.DataFrame({"prompt": ["prompt number 3", "PROMPT NUMBER 4", "of another log"]})
    kept.to_parquet(bundle.parent / "test.parquet")
    found = with_scores(requests, prompts, bundle)
    assert np.flatnonzero(np.isfinite(found.requests.score)).tolist() == [3, 4]
    assert found.num_prompts == 2
    with pytest.raises(DataError, match="no request has a prompt"):
        with_scores(requests, np.full(COUNT, "", dtype=object), bundle)


def test_training_gets_prompts_and_lengths_and_tells_its_failure(log, tmp_path, monkeypatch):
    requests, prompts = requests_and_prompts([str(log)], TraceOptions(), needs_prompts=True)
    prompts[0] = " "
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, len(commands) - 1)

    monkeypatch.setattr(evidence.subprocess, "run", run)
    assert train(requests, prompts, tmp_path, "quick", {"seed": 7}) == tmp_path / "ranker/bundle"
    (command,) = commands
    assert command[1:6] == ["-P", "-m", "training", "fit", "quick"]
    assert command[command.index("--seed") + 1] == "7"
    table = pd.read_parquet(command[command.index("--data.dataset") + 1])
    assert table["output_tokens"].tolist() == list(range(2, COUNT + 1))
    with pytest.raises(ConfigError, match="exit code 1"):
        train(requests, prompts, tmp_path, "quick", {})
