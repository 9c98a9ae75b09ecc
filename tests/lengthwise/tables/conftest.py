"""A tokenizer of words, for answers without counts."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace


@pytest.fixture
def tokenizer(tmp_path):
    made = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.enable_padding(length=64)
    made.enable_truncation(2)
    made.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"
