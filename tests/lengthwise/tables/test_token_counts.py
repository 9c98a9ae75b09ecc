"""Counts of a row add up to its total, or contradict it."""

import pytest

from lengthwise.errors import ConfigError
from lengthwise.tables.token_counts import settle, token_counter


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({"prompt": 9, "output": 5, "total": 14}, (9, 5, None)),
        ({"prompt": 9, "output": 5, "reasoning": 3, "total": 14}, (9, 5, 3)),
        ({"prompt": 32, "output": 9, "reasoning": 94, "total": 135}, (32, 103, 94)),
        ({"prompt": 10, "output": 20, "total": 130}, (10, 120, 100)),
        ({"prompt": 5, "output": 541, "cached": 20204, "total": 20750}, (20209, 541, None)),
        ({"prompt": 5, "output": 6, "cached": 4, "total": 11}, (5, 6, None)),
        ({"prompt": 5, "output": 6, "cached": 4, "cached_beside": True}, (9, 6, None)),
        ({"prompt": 5, "output": 6, "reasoning": 4, "parts_beside": True}, (5, 10, 4)),
        ({"prompt": 5, "output": 6, "reasoning": 4}, (5, 6, 4)),
        ({"prompt": 5, "output": None, "total": 12}, (5, 7, None)),
        ({"prompt": None, "output": 5, "total": 12}, (7, 5, None)),
        ({"prompt": None, "output": None, "total": 12}, (None, None, None)),
        ({"prompt": 5, "output": 6, "total": 0}, (5, 6, None)),
    ],
)
def test_the_total_decides(given, counts):
    found = settle(**given)
    assert (found[:3], found.doubt) == (counts, "")


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": 9, "output": 5, "total": 3},
        {"prompt": 9, "output": 5, "reasoning": 4, "total": 50},
        {"prompt": 9, "output": 5, "reasoning": 6},
        {"prompt": 10, "output": 102, "reasoning": 109, "total": 112},
    ],
)
def test_contradicting_counts_are_doubtful(given):
    assert settle(**given).doubt


def test_a_file_or_its_folder_counts_tokens(tokenizer):
    assert token_counter(str(tokenizer))("one two, three") == 4
    tokenizer.rename(tokenizer.with_name("tokenizer.json"))
    assert token_counter(str(tokenizer.parent))("") == 0


def test_an_unreadable_tokenizer_is_named(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer '.*t\.json' cannot be loaded"):
        token_counter(str(tmp_path / "t.json"))
