"""Labels: samples of a prompt stay together, models stay apart or form a consensus."""

import logging
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import concatenate_datasets

from lengthwise.errors import DataError
from tests.training.prompts import PromptResponse, labelled, numbered, of_responses
from training.data.labels import (
    TableOptions,
    consensus_of,
    distinct,
    is_held_out,
    label_prompts,
    lengths_of,
    observed,
    of_one_model,
    read_prompts,
    side_by_side,
    source_codes,
    targets,
    texts,
    union_of,
    without,
)
from training.data.records import prompt_hash


def answers(model: str, *lengths: int) -> Any:
    return labelled({f"p{n}": (length,) for n, length in enumerate(lengths)}, model=model)


def together(*parts: Any) -> Any:
    return concatenate_datasets(list(parts))


def labels_of(items: Any) -> list[tuple[str, str, float]]:
    return list(zip(texts(items), items["model"], observed(items), strict=True))


def test_a_consensus_hears_a_models_order_and_not_its_verbosity():
    both = consensus_of(together(answers("a", 10, 20, 40), answers("b", 1000, 2000, 4000)))
    assert observed(both).tolist() == [100, 200, 400]
    assert set(both["model"]) == {"consensus"}


def test_a_model_that_skips_prompts_does_not_bend_the_consensus():
    full = answers("a", 10, 20, 40)
    lengths = observed(consensus_of(together(full, labelled({"p1": (7,)}, model="b"))))
    assert lengths.tolist() == sorted(lengths)


def test_several_models_must_be_chosen_from_or_joined():
    both = together(answers("a", 10, 20), answers("b", 5, 9))
    with pytest.raises(DataError, match=r"2 models \(a, b\.\.\.\); choose data\.model"):
        of_one_model(both, model=None, consensus=False, held_out=0)
    with pytest.raises(DataError, match="none called 'c'"):
        of_one_model(both, model="c", consensus=False, held_out=0)
    chosen = of_one_model(both, model="b", consensus=False, held_out=0)
    assert labels_of(chosen) == [("p0", "b", 5), ("p1", "b", 9)]


def test_held_out_models_follow_from_their_names_alone():
    names = [f"model-{n}" for n in range(1000)]
    held = [name for name in names if is_held_out(name, 0.25)]
    assert 200 < len(held) < 300
    place = int(prompt_hash("m", salt="lengthwise-models")[:12], 16) / 2**48
    assert not is_held_out("m", place)
    assert is_held_out("m", math.nextafter(place, 1))


def records(*rows: tuple[str, int, int], **about: Any) -> Any:
    return of_responses(
        [PromptResponse(prompt=p, output_tokens=n, sample=s, **about) for p, n, s in rows]
    )


def test_repeated_samples_are_one_prompt_with_the_tested_first():
    prompts = label_prompts(records(("A b", 9, 1), ("c", 5, 0), ("a  B", 4, 0)))
    assert lengths_of(prompts) == [[4, 9], [5]]
    assert texts(prompts) == ["A b", "c"]  # as it was first written
    assert observed(prompts).tolist() == targets(prompts, "first").tolist() == [4, 5]
    assert targets(prompts, "geometric_mean") == pytest.approx([6.0, 5.0])


def test_models_keep_their_own_lengths():
    both = [
        PromptResponse(prompt="a", output_tokens=length, model=model)
        for model, length in (("x", 3), ("y", 30))
    ]
    assert labels_of(label_prompts(of_responses(both))) == [("a", "x", 3), ("a", "y", 30)]


def test_a_missing_label_is_told():
    with pytest.raises(DataError, match="no reasoning_tokens"):
        label_prompts(records(("a", 3, 0)), "reasoning_tokens")


def test_a_response_without_reasoning_has_no_reasoning_label():
    made = of_responses(
        [
            PromptResponse(prompt=prompt, output_tokens=3, reasoning_tokens=thought)
            for prompt, thought in (("a", 0), ("b", 2))
        ]
    )
    prompts = label_prompts(made, "reasoning_tokens")
    assert (texts(prompts), observed(prompts).tolist()) == (["b"], [2])


def test_two_models_not_held_out_make_a_consensus():
    both = together(answers("a", 10, 20, 40), answers("b", 40, 20, 90))
    joined = of_one_model(both, model=None, consensus=True, held_out=0)
    assert labels_of(joined) == labels_of(consensus_of(both))
    (held,) = [name for name in "abcdefgh" if is_held_out(name, 0.1)][:1] or ["?"]
    others = [name for name in "abcdefgh" if not is_held_out(name, 0.1)][:2]
    parts = [answers(name, 5 + n, 50) for n, name in enumerate([held, *others])]
    joined = of_one_model(together(*parts), model=None, consensus=True, held_out=0.1)
    assert labels_of(joined) == labels_of(consensus_of(together(*parts[1:])))
    alone = answers("a", 10, 20)
    one = of_one_model(alone, model=None, consensus=True, held_out=0)
    assert labels_of(one) == labels_of(alone)


def test_a_consensus_is_never_below_one_token():
    quiet = labelled({"p1": (1,)}, model="b")
    lengths = observed(consensus_of(together(answers("a", 1, 10_000), quiet)))
    assert lengths.tolist() == [1, 100]


def test_joined_prompts_of_several_sets_are_told_apart_by_keys():
    first, second = numbered(4), labelled({"BEES 3": (9,), "wasps": (2,)})
    assert texts(union_of([first, second])) == ["bees 0", "bees 1", "bees 2", "bees 3", "wasps"]
    assert texts(without(second, [first, first.select([])])) == ["wasps"]
    assert texts(distinct(together(first, second)))[3:] == ["BEES 3", "wasps"]
    rows = side_by_side(first, [first, second])
    np.testing.assert_array_equal(rows[2:], [[3, np.nan], [4, 9]])
    sets = together(*(label_prompts(records(("a", 3, 0)), source=name) for name in "yxy"))
    assert source_codes(sets).tolist() == [1, 0, 1]
    assert np.isnan(side_by_side(sets, [sets.select([0])])[1]).all()


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "logs.csv"
    pd.DataFrame(
        {
            "text": ["a", "b", "a"],
            "first": [3, 0, 5],
            "second": [4, 6, 7],
            "task": ["x", "y", "x"],
            "llm": ["m", "m", "n"],
        }
    ).to_csv(path, index=False)
    return str(path)


def test_length_columns_are_samples_and_the_label_is_the_default(table, caplog):
    chosen = TableOptions(data=(table,), prompt_column="text", length_column=("second", "first"))
    with caplog.at_level(logging.INFO, logger="training"):
        prompts = read_prompts(chosen, "reasoning_tokens")
    assert (texts(prompts), lengths_of(prompts)) == (["a", "b"], [[4, 7, 3, 5], [6]])
    assert "1 rows with a length of 0 dropped" in caplog.text
    by_label = read_prompts(TableOptions(data=(table,), prompt_column="text"), "second")
    assert observed(by_label).tolist() == [4, 6]


def test_a_model_must_be_chosen_where_the_table_holds_several(table):
    columns: Any = {"prompt_column": "text", "length_column": ("second",), "group_column": "task"}
    with pytest.raises(DataError, match="the rows are of m, n; choose one with --model"):
        read_prompts(TableOptions(data=(table,), model_column="llm", **columns), "")
    one = TableOptions(data=(table,), model_column="llm", model="n", **columns)
    (row,) = read_prompts(one, "")
    assert (row["model"], row["lengths"], row["group"]) == ("n", [7], "x")
    with pytest.raises(DataError, match="3 a model other than o"):
        read_prompts(TableOptions(data=(table,), model_column="llm", model="o", **columns), "")
