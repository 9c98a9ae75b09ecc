"""A missing column is named beside those there are, with the option that would mend it."""

import re

import pandas as pd
import pytest

from lengthwise.errors import DataError
from lengthwise.tables.columns import ARRIVAL, LENGTH, PROMPT, require_columns

FRAME = pd.DataFrame(
    {
        "id": ["x"],
        "sent": ["2026-03-01T10:00:00"],
        "created_time": ["2026-03-01T10:00:00"],
        "question": ["why?"],
        "meta": [{"stats": {"in": 3, "reply_tokens": 4}}],
    }
)


def test_the_option_is_printed_with_the_likeliest_column() -> None:
    options = {"prompt": PROMPT, "output_tokens": LENGTH, "arrival_s": ARRIVAL}
    text = (
        "logs: no column 'prompt', 'output_tokens', 'arrival_s'; the columns are: id, sent, "
        "created_time, question, meta.stats.in, meta.stats.reply_tokens; give --prompt-column "
        "question --length-column meta.stats.reply_tokens --arrival-column created_time, or so"
    )
    with pytest.raises(DataError, match=re.escape(text)):
        require_columns(FRAME, list(options), "logs", options, ", or so")


def test_where_nothing_fits_the_option_takes_any_column() -> None:
    with pytest.raises(DataError, match=r"the columns are: id; give --length-column COLUMN$"):
        require_columns(FRAME[["id"]], ["n"], None, {"n": LENGTH})


def test_columns_that_are_there_pass() -> None:
    require_columns(FRAME, ["id", "meta"], None)
