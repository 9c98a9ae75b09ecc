"""Tokens of a text, counted by a named tokenizer."""

from pathlib import Path

import pytest

from lengthwise.errors import ConfigError
from lengthwise.tables.tokenizer import token_counter


def test_a_file_or_its_folder_counts_tokens(tokenizer: Path) -> None:
    assert token_counter(str(tokenizer))("one two, three") == 4
    tokenizer.rename(tokenizer.with_name("tokenizer.json"))
    assert token_counter(str(tokenizer.parent))("") == 0


def test_an_unreadable_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer '.*t\.json' cannot be loaded"):
        token_counter(str(tmp_path / "t.json"))
