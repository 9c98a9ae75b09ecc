"""Every layout reads small files of its source's form, and its table fits the card."""

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tests.training.sources.github import REPOSITORIES
from training.data.cards import read_card
from training.sources.layouts import LAYOUTS


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def built(name: str, folder: Path) -> dict[str, pd.DataFrame]:
    places = {}
    for path, content in sorted(REPOSITORIES[read_card(name).source].items()):
        if re.fullmatch(LAYOUTS[name].files, path):
            places[path] = folder / path.replace("/", "-")
            places[path].write_bytes(content)
    return LAYOUTS[name].tables(places, words)


def test_rows_keep_prompts_and_lengths_together(tmp_path):
    teacher = built("gpteacher-gpt4", tmp_path)["lengths"]
    assert teacher[["subset", "prompt", "output_tokens"]].values.tolist() == [
        ["codegen", "Add.\n\n1, 2", 3],
        ["codegen", "Greet.", 1],
        ["roleplay", "Be a bee.", 2],
        ["toolformer", "Call.", 1],
    ]
    assert built("alpaca-davinci003", tmp_path)["lengths"].output_tokens.tolist() == [1, 26, 101]
    evaluated = built("alpaca-eval", tmp_path)["lengths"]
    assert evaluated[["model", "output_tokens"]].values.tolist() == [["a model", 1], ["m", 3]]
    arena = built("arena-hard", tmp_path)
    assert arena["lengths"].model.tolist() == ["m", "m"]
    assert arena["prompts"].prompt.tolist() == ["One?", "Two?"]


def test_reasoning_and_answer_count_apart_wherever_they_stand(tmp_path):
    columns = ["model", "sample", "reasoning_visible", "reasoning_tokens", "answer_tokens"]
    assert built("misguided-attention", tmp_path)["lengths"][columns].values.tolist() == [
        ["m", 0, True, 3, 1],
        ["m", 2, False, 0, 2],
        ["q", 0, True, 2, 1],
    ]
    mining = built("pm-llm-benchmark", tmp_path)
    assert mining["prompts"].values.tolist() == [["cat01_01_case", "Which cases?"]]
    assert mining["lengths"][columns].values.tolist() == [
        ["other", 0, True, 3, 1],
        ["quiet", 0, False, 0, 2],
        ["some_model", 0, True, 2, 1],
    ]
    plans = built("planbench", tmp_path)["lengths"]
    bills = ["model", "reasoning_tokens", "api_reasoning_tokens", "api_completion_tokens"]
    assert plans[bills].values.tolist() == [
        ["deepseek-r1-api", 3, 60, 90],
        ["o1-mini_chat", 0, 64, 90],
    ]
    assert set(plans.prompt_id) == {"blocksworld/task_1_plan_generation_zero_shot/1"}


def test_lengths_that_a_source_counted_itself_are_kept(tmp_path):
    vicuna = built("alpaca-vicuna7b", tmp_path)["lengths"]
    shown = vicuna[["orig_split", "prompt", "vicuna_tokens_t0_7", "vicuna_tokens_t0_0"]]
    assert shown.values.tolist() == [["train", "Say 5.", 70, 9], ["val", "Say 1.", 70, 9]]
