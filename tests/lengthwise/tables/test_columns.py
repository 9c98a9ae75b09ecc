"""A missing column is named beside those there are, with the option that would mend it."""

import re

import pandas as pd
import pytest

from lengthwise.errors import DataError
from lengthwise.tables.columns import LENGTH, PROMPT, require_columns

FRAME = pd.DataFrame(
    {
        "id": ["x"],
        "sent": ["2026-03-01T10:00:00"],
        "question": ["why?"],
        "meta": [{"stats": {"in": 3, "reply_tokens": 4}}],
    }
)


def test_the_columns_are_listed_with_the_options_to_give() -> None:
    options = {"prompt": PROMPT, "output_tokens": LENGTH}
    text = (
        "logs: no column 'prompt', 'output_tokens', 'more'; the columns are: id, sent, question, "
        "meta.stats.in, meta.stats.reply_tokens; give --prompt-column COLUMN --length-column "
        "COLUMN, or so"
    )
    with pytest.raises(DataError, match=re.escape(text)):
        require_columns(FRAME, [*options, "more"], "logs", options, ", or so")


def test_columns_that_are_there_pass() -> None:
    require_columns(FRAME, ["id", "meta"], None)
