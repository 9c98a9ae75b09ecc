"""Evidence of a log: prompts stay with their requests, and only unseen ones are scored."""

import json
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lengthwise.errors import ConfigError, DataError
from lengthwise.tables.options import TraceOptions
from scheduler_adapters.commands.advise import scored_log as evidence
from scheduler_adapters.commands.advise.scored_log import own_ranker, read_requests, with_scores

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
            row = {"request": {"model": "llama", "messages": messages}, "response": response}
            written.write(json.dumps(row) + "\n")
    return path


def traffic_of(log, **changes):
    return replace(read_requests([str(log)], TraceOptions(), needs_prompts=True), **changes)


def test_requests_come_by_arrival_each_with_its_own_prompt(log):
    traffic = traffic_of(log)
    assert traffic.requests.output_tokens.tolist() == list(range(1, COUNT + 1))
    assert traffic.requests.arrival_s.tolist() == list(range(COUNT))
    assert traffic.prompts.tolist() == [f"Prompt  Number {number}" for number in range(COUNT)]
    assert traffic.models == ("llama",)
    assert np.isnan(traffic.requests.score).all()
    unread = read_requests([str(log)], TraceOptions(), needs_prompts=False).prompts
    assert unread.tolist() == [""] * COUNT


def test_only_test_prompts_are_scored_however_they_are_written(log, tmp_path, tiny_bundle):
    traffic = traffic_of(log)
    bundle = tmp_path / "run" / "bundle"
    bundle.parent.mkdir()
    bundle.symlink_to(tiny_bundle.path)
    found = with_scores(traffic, bundle)  # trained elsewhere
    assert np.isfinite(found.requests.score).all()
    assert found.num_prompts == COUNT
    kept = pd.DataFrame({"prompt": ["prompt number 3", "PROMPT NUMBER 4", "of another log"]})
    kept.to_parquet(bundle.parent / "test.parquet")
    found = with_scores(traffic, bundle)
    assert np.flatnonzero(np.isfinite(found.requests.score)).tolist() == [3, 4]
    assert found.num_prompts == 2
    with pytest.raises(DataError, match="no request has a prompt"):
        with_scores(replace(traffic, prompts=np.full(COUNT, "", dtype=object)), bundle)


def test_a_ranker_is_trained_once_for_the_same_rows(log, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    traffic, commands = traffic_of(log), list[list[str]]()
    traffic.prompts[0] = " "

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        (tmp_path / "ranker" / "bundle").mkdir(parents=True, exist_ok=True)
        return subprocess.CompletedProcess(command, len(commands) // 3)

    monkeypatch.setattr(evidence.subprocess, "run", run)
    options = {"seed": 7, "student": False}
    for _ in range(2):
        assert own_ranker(traffic, tmp_path, "quick", options) == tmp_path / "ranker/bundle"
    (command,) = commands
    assert "it is used" in caplog.text
    assert command[1:6] == ["-P", "-m", "training", "fit", "quick"]
    given = dict(zip(command[6::2], command[7::2], strict=True))
    assert (given["--seed"], given["--student"]) == ("7", "False")
    table = pd.read_parquet(given["--data.dataset"])
    assert table["output_tokens"].tolist() == list(range(2, COUNT + 1))
    assert {path.name for path in tmp_path.iterdir()} == {log.name, "prompts.parquet", "ranker"}
    own_ranker(traffic, tmp_path, "quick", options | {"seed": 8})
    assert "a new one" in caplog.text
    with pytest.raises(ConfigError, match="exit code 1"):
        own_ranker(traffic, tmp_path, "best", options)
    assert not (tmp_path / "ranker" / "learnt.json").exists()
