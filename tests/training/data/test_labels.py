"""Labels: samples of a prompt stay together, models stay apart or form a consensus."""

import logging
import math
from dataclasses import replace

import pandas as pd
import pytest

from lengthwise.errors import DataError
from tests.lengthwise.tables import logs
from training.data.labels import (
    LabelledPrompt,
    TableOptions,
    consensus_of,
    is_held_out,
    label_prompts,
    of_one_model,
    read_prompts,
)
from training.data.records import PromptResponse, prompt_hash


def answers(model: str, *lengths: int) -> list[LabelledPrompt]:
    return [
        LabelledPrompt(prompt=f"p{n}", model=model, lengths=(length,))
        for n, length in enumerate(lengths)
    ]


def test_a_consensus_hears_the_order_of_a_model_and_not_its_verbosity():
    terse, verbose = answers("a", 10, 20, 40), answers("b", 1000, 2000, 4000)
    together = consensus_of([*terse, *verbose])
    assert [item.observed for item in together] == [100, 200, 400]
    assert {item.model for item in together} == {"consensus"}


def test_a_model_that_skips_prompts_does_not_bend_the_consensus():
    full = answers("a", 10, 20, 40)
    partial = [replace(item, model="b", lengths=(7,)) for item in full[1:2]]
    assert [item.observed for item in consensus_of([*full, *partial])] == sorted(
        item.observed for item in consensus_of([*full, *partial])
    )


def test_several_models_must_be_chosen_from_or_joined():
    both = [*answers("a", 10, 20), *answers("b", 5, 9)]
    with pytest.raises(DataError, match=r"2 models \(a, b\.\.\.\); choose data\.model"):
        of_one_model(both, model=None, consensus=False, held_out=0)
    with pytest.raises(DataError, match="none called 'c'"):
        of_one_model(both, model="c", consensus=False, held_out=0)
    assert of_one_model(both, model="b", consensus=False, held_out=0) == both[2:]


def test_held_out_models_follow_from_their_names_alone():
    names = [f"model-{n}" for n in range(1000)]
    held = [name for name in names if is_held_out(name, 0.25)]
    assert 200 < len(held) < 300
    assert set(held) <= {name for name in names if is_held_out(name, 0.5)}


def record(prompt: str, tokens: int, sample: int = 0, **rest: int) -> PromptResponse:
    return PromptResponse(prompt=prompt, output_tokens=tokens, sample=sample, **rest)


def test_repeated_samples_become_one_prompt_with_the_tested_sample_first():
    prompts = label_prompts([record("A b", 9, 1), record("c", 5), record("a  B", 4, 0)])
    assert [item.lengths for item in prompts] == [(4, 9), (5,)]
    assert [item.prompt for item in prompts] == ["A b", "c"]  # as it was first written
    assert prompts[0].observed == 4
    assert prompts[0].target("geometric_mean") == pytest.approx(6.0)
    assert prompts[0].target("first") == 4.0


def test_models_keep_their_own_lengths():
    records = [
        PromptResponse(prompt="a", output_tokens=3, model="x"),
        PromptResponse(prompt="a", output_tokens=30, model="y"),
    ]
    assert [(p.model, p.observed) for p in label_prompts(records)] == [("x", 3), ("y", 30)]


def test_a_missing_label_is_told():
    with pytest.raises(DataError, match="no reasoning_tokens"):
        label_prompts([record("a", 3)], "reasoning_tokens")


def test_a_response_without_reasoning_has_no_reasoning_label():
    records = [record("a", 3, reasoning_tokens=0), record("b", 3, reasoning_tokens=2)]
    prompts = label_prompts(records, "reasoning_tokens")
    assert [(p.prompt, p.observed) for p in prompts] == [("b", 2)]


def test_two_models_make_a_consensus_of_those_that_are_not_held_out():
    both = [*answers("a", 10, 20, 40), *answers("b", 40, 20, 90)]
    joined = of_one_model(both, model=None, consensus=True, held_out=0)
    assert joined == consensus_of(both)
    assert {item.model for item in joined} == {"consensus"}
    (held,) = [name for name in "abcdefgh" if is_held_out(name, 0.1)][:1] or ["?"]
    others = [name for name in "abcdefgh" if not is_held_out(name, 0.1)][:2]
    three = [item for n, name in enumerate([held, *others]) for item in answers(name, 5 + n, 50)]
    kept = [item for item in three if item.model != held]
    assert of_one_model(three, model=None, consensus=True, held_out=0.1) == consensus_of(kept)
    alone = answers("a", 10, 20)
    assert of_one_model(alone, model=None, consensus=True, held_out=0) == alone


def test_a_consensus_is_never_below_one_token():
    talkative = [*answers("a", 1, 10_000), answers("b", 1, 1)[1]]
    assert [item.observed for item in consensus_of(talkative)] == [1, 100]


def test_a_model_is_held_out_below_the_fraction_and_not_at_it():
    place = int(prompt_hash("m", salt="lengthwise-models")[:12], 16) / 2**48
    assert not is_held_out("m", place)
    assert is_held_out("m", math.nextafter(place, 1))


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
    assert [(item.prompt, item.lengths) for item in prompts] == [("a", (4, 7, 3, 5)), ("b", (6,))]
    assert "1 rows with a length of 0 dropped" in caplog.text
    by_label = read_prompts(TableOptions(data=(table,), prompt_column="text"), "second")
    assert [item.observed for item in by_label] == [4, 6]


def test_a_model_must_be_chosen_where_the_table_holds_several(table):
    columns = {"prompt_column": "text", "length_column": ("second",), "group_column": "task"}
    with pytest.raises(DataError, match="the rows are of m, n; choose one with --model"):
        read_prompts(TableOptions(data=(table,), model_column="llm", **columns), "")  # type: ignore[arg-type]
    one = TableOptions(data=(table,), model_column="llm", model="n", **columns)  # type: ignore[arg-type]
    assert [(p.model, p.observed, p.group) for p in read_prompts(one, "")] == [("n", 7, "x")]
    with pytest.raises(DataError, match="3 a model other than o"):
        read_prompts(TableOptions(data=(table,), model_column="llm", model="o", **columns), "")  # type: ignore[arg-type]


def test_a_log_is_read_like_a_table(tmp_path):
    path = str(logs.write_lines(tmp_path / "log.jsonl", logs.LITELLM))
    prompts = read_prompts(TableOptions(data=(path,), model="m"), "output_tokens")
    assert [(item.prompt, item.observed) for item in prompts] == [("one", 12), ("two", 30)]
    (reasoned,) = read_prompts(TableOptions(data=(path,), on_bad_rows="skip"), "reasoning_tokens")
    assert (reasoned.prompt, reasoned.observed) == ("two", 20)
