"""Collecting: settings checked, prompts once, rows of other settings never mixed."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lengthwise.errors import ConfigError, DataError
from training.collection import collecting
from training.collection.answers import AnswerLog
from training.collection.collecting import CollectConfig, read_prompts
from training.data.records import prompt_hash


def config(tmp_path: Path, **changes: Any) -> CollectConfig:
    settings = {"endpoint": "http://llm", "model": "m", "prompts": tmp_path / "prompts.csv"}
    return CollectConfig(**{**settings, "out": tmp_path / "out.jsonl", **changes})


def test_prompts_differing_only_in_case_or_spaces_are_asked_once(tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text("text\nHello there\nhello  THERE\nBye\n")
    assert read_prompts(path, "text") == (["Hello there", "Bye"], 1)
    with pytest.raises(DataError, match="no column 'prompt'"):
        read_prompts(path, "prompt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"timeout_s": 0.0}, "timeout_s is 0"),
        ({"extra": {"stream": True}}, "extra holds stream"),
        ({"out": Path("rows.csv")}, "ends in .jsonl"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, **changes)


def test_responses_in_the_file_are_not_asked_again(tmp_path: Path) -> None:
    mine = config(tmp_path)
    request = {"request": mine.request}
    with closing(AnswerLog(mine.out)) as log:
        log.append({"prompt": "A b", "sample": 1, **request})
        assert collecting._done(log, mine) == {(prompt_hash("a  B"), 1)}
        with pytest.raises(ConfigError, match="was collected with"):
            collecting._done(log, config(tmp_path, temperature=1.0))
        log.append({"prompt": "c", **request})
        with pytest.raises(DataError, match="row 1: not a row that collect wrote"):
            collecting._done(log, mine)
