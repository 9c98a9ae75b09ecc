"""The set of the package: its prompts are those of the grammar, in its order, each answered."""

import re
from typing import Any

import pandas as pd

from training.data.cards import BUNDLED, CARDS


def test_the_table_holds_answers_to_the_grammars_prompts():
    made: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", (CARDS / "README.md").read_text(), re.S)[-1], made)
    written = pd.DataFrame(made["prompts"]((CARDS / BUNDLED / "grammar.yaml").read_text()))
    table = pd.read_parquet(CARDS / BUNDLED / "lengths.parquet")
    again = made["table"](written, table.drop(columns=["template", "topic"]))
    pd.testing.assert_frame_equal(again[[*table]], table)
    assert len(table) > 500
    assert (table["output_tokens"][table["finish_reason"] == "length"] == 1024).all()
