"""Places of long tasks in frames that hide or dress them.

    python -m benchmarks frames mlruns/demo

The folder is one of `python -m training fit`. Its tenth of test prompts with the highest scores is
sent in each frame, as a body of vLLM's server. A place is the share of plain prompts before it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.bundle import ModelBundle
from lengthwise.tables.prompt_text import CutText
from lengthwise.tables.reading import read_table
from scheduler_adapters.engines.vllm_v1 import client_bodies
from scoring_service.ranker.model import RankerModel

SHORT = "What is the capital of France?"
CLAIMS = (
    *("Answer briefly.", "Answer with yes or no:", "Reply with one word."),
    *("TL;DR only, please.", "Use 10 characters or fewer."),
)
"""No frame of the training (`training/data/frames.py`) holds one of these texts."""
FILLER = " ".join(f"Cars of the year {1900 + n} were red and stood in a street." for n in range(99))
Body = tuple[str, dict[str, Any]]


def filler(num_words: int) -> str:
    return " ".join(FILLER.split()[:num_words])


def text(made: Callable[[str], str]) -> Callable[[str], Body]:
    return lambda task: ("/v1/completions", {"prompt": made(task)})


def chat(*turns: tuple[str, str | None], **more: str | None) -> Callable[[str], Body]:
    """Return the chat in which None is the task."""

    def body(task: str) -> Body:
        messages = [
            {"role": role, "content": task if said is None else said} for role, said in turns
        ]
        return "/v1/chat/completions", {"messages": messages} | {
            key: task if said is None else said for key, said in more.items()
        }

    return body


USER = ("user", "ok, do it")
FRAMES: dict[str, Callable[[str], Body]] = {
    "plain": text(lambda task: task),
    "4,096 spaces behind a short question": text(lambda task: SHORT + " " * 4096 + task),
    "as many that Unicode does not show": text(lambda task: SHORT + "\u200b\u3164" * 2048 + task),
    "40 words of filler before": text(lambda task: f"{filler(40)} {task}"),
    "60 words before and after": text(lambda task: f"{filler(60)} {task} {filler(60)}"),
    "600 words before and after": text(lambda task: f"{filler(600)} {task} {filler(600)}"),
    "system message, then a word": chat(("system", None), USER),
    "developer message, then a word": chat(("developer", None), USER),
    "Anthropic's system, then a word": chat(USER, system=None),
    "instructions, then a word": lambda task: (
        "/v1/responses",
        {"input": USER[1], "instructions": task},
    ),
    "assistant's turn, then a word": chat(("user", SHORT), ("assistant", None), USER),
    "result of a tool, then a word": chat(("user", SHORT), ("tool", None), USER),
    "plain, with a system prompt": chat(
        ("system", "You work for a bank. Be kind."), ("user", None)
    ),
    **{f"'{said}' before": text(lambda task, said=said: f"{said} {task}") for said in CLAIMS},
    **{f"'{said}' after": text(lambda task, said=said: f"{task} {said}") for said in CLAIMS},
    "a short question before": text(lambda task: f"{SHORT} {task}"),
    "a short question after": text(lambda task: f"{task} {SHORT}"),
    "letters with spaces": text(lambda task: " ".join(task)),
    "full-width letters": text(
        lambda task: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in task)
    ),
}


def places(model: RankerModel, prompts: list[str]) -> dict[str, Any]:
    """Return the place of each long task in each frame, in percent; 100 is last."""
    plain = np.sort(model.score_texts(prompts))
    order = np.argsort(model.score_texts(prompts))
    tasks = [prompts[n] for n in order[-max(1, len(prompts) // 10) :]]
    found = {}
    for name, frame in FRAMES.items():
        rows = []
        for task in tasks:
            path, body = frame(task)
            texts = client_bodies.SCORED[path][0](json.loads(json.dumps(body)))
            (read,) = model.tokenizer.tokenize(texts[:1])
            is_cut = read.truncated or isinstance(texts[0], CutText)
            share = np.searchsorted(plain, model.score([read.ids])[0]) / len(plain)
            rows.append(1.0 if is_cut else share)
        found[name] = 100 * np.array(rows)
    return found


def table(found: dict[str, Any]) -> str:
    """Return the rows of the table in Markdown."""
    rows = [
        "| frame | median place, % | worst tenth | within 10 of plain, or last |",
        "|---|---|---|---|",
    ]
    for name, each in found.items():
        near = np.mean(each >= found["plain"] - 10)
        low = np.percentile(each, 10)
        rows.append(f"| {name} | {np.median(each):.0f} | {low:.0f} | {100 * near:.0f} % |")
    return "\n".join(rows)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    prompts = read_table(folder / "test.parquet", ("prompt",))["prompt"].tolist()
    print(table(places(RankerModel.load(ModelBundle.load(folder / "bundle")), prompts)))
