"""Layouts of public sources: the files of each, and the tables that a card reads.

Lengths are BERT WordPiece counts without special tokens, words and characters of the response; the
sources keep texts, not counts. Rows keep the order of the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

Files = Mapping[str, Path]
Count = Callable[[Sequence[str]], list[int]]
"""Returns the tokens of each text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The files of a source, and how tables are made of them."""

    files: str
    """Regular expression over whole paths."""
    build: Callable[[Files, Count], dict[str, pd.DataFrame]]
    """Returns the tables by the end of their names: "lengths" and, with a join, "prompts"."""


def gpteacher(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """Instructions and responses of three subsets, with the input after a blank line."""
    rows = [
        {
            "subset": path.partition("/")[0].lower(),
            "prompt": _asked(item).strip(),
            "text": item["response"],
        }
        for path in files
        for item in _json(files[path])
    ]
    return {"lengths": _measured(rows, count)}


def alpaca_davinci(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """Instructions and responses in numbered shards."""
    shards = sorted(files, key=lambda path: int(path.rpartition("_")[2].partition("-")[0]))
    items = [item for path in shards for item in _json(files[path])]
    rows = [{"prompt": _asked(item), "text": item["output"]} for item in items]
    return {"lengths": _measured(rows, count)}


def alpaca_eval(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One file of outputs per model; attacks on the judge, which are no answers, are left out."""
    rows = []
    for path in sorted(files):
        model = path.split("/")[1]
        if model not in _ATTACKS:
            items = _json(files[path])
            rows += [
                {"prompt": item["instruction"], "model": model, "text": item["output"]}
                for item in items
            ]
    return {"lengths": _measured(rows, count)}


def arena_hard(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """Questions in one file, the answers of each model in another.

    Left out: the repository's own models, and one whose file is cut off.
    """
    questions = [
        {
            "question_id": q["question_id"],
            "prompt": q["turns"][0]["content"],
            "cluster": q["cluster"],
        }
        for path in files
        if path.endswith("question.jsonl")
        for q in _lines(files[path])
    ]
    answers = [
        {
            "question_id": item["question_id"],
            "model": Path(path).stem,
            "text": item["choices"][0]["turns"][0]["content"],
        }
        for path in sorted(files)
        if "model_answer" in path and not Path(path).name.startswith(("krikri", "yi-1.5-34b"))
        for item in _lines(files[path])
    ]
    return {"prompts": pd.DataFrame(questions), "lengths": _measured(answers, count)}


def zeroeval(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One file per task and model; the prompt is what the chat began with."""
    prompts: dict[tuple[str, str], str] = {}
    rows = []
    for path in sorted(files):
        _, task, name = path.split("/")
        model = name.removesuffix(".json")
        for item in _json(files[path]):
            prompts.setdefault((task, item["id"]), item["chat_history"][0])
            rows.append(
                {
                    "dataset": task,
                    "prompt_id": item["id"],
                    "model": model,
                    "hidden_reasoning": model.startswith("o1-"),
                    "text": item["output"][0],
                }
            )
    asked = [{"dataset": d, "prompt_id": i, "prompt": text} for (d, i), text in prompts.items()]
    return {"prompts": pd.DataFrame(asked), "lengths": _measured(rows, count)}


_ATTACKS: Final = frozenset(("NullModel", "gpt4_gamed"))
LAYOUTS: Final = {
    "alpaca-davinci003": Layout(files=r"alpaca_data/file_\d+-\d+\.json", build=alpaca_davinci),
    "alpaca-eval": Layout(files=r"results/[^/]+/model_outputs\.json", build=alpaca_eval),
    "arena-hard": Layout(
        files=r"data/arena-hard-v0\.1/(?:question|model_answer/[^/]+)\.jsonl", build=arena_hard
    ),
    "gpteacher-gpt4": Layout(
        files=r"(?:Codegen/codegen|Roleplay/roleplay-simple-deduped-roleplay)-instruct\.json"
        r"|Toolformer/toolformer-dedupe-only-dataset\.json",
        build=gpteacher,
    ),
    "zeroeval": Layout(
        files=r"result_dirs/(?:gsm|crux|math-l5|numersense-v2)/[^/]+\.json", build=zeroeval
    ),
}
"""Layouts by the id of the card."""


def _asked(item: Mapping[str, Any]) -> str:
    """The instruction, and its input after a blank line where there is one."""
    return f"{item['instruction']}\n\n{item['input']}" if item["input"] else item["instruction"]


def _measured(rows: list[dict[str, Any]], count: Count) -> pd.DataFrame:
    """The rows with the lengths of their texts, which are left out."""
    frame = pd.DataFrame(rows)
    texts = frame.pop("text")
    return frame.assign(
        output_chars=texts.str.len(),
        output_words=[len(text.split()) for text in texts],
        output_tokens=count(texts.tolist()),
    )


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
