"""Layouts of public sources: the files of each, and the tables that a card reads.

Lengths are BERT WordPiece counts of the response, without special tokens; the sources keep texts,
not counts. Rows keep the order of the source.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

Files = Mapping[str, Path]
Row = dict[str, Any]
_PARTS: Final = {"text": "output", "reasoning": "reasoning", "answer": "answer"}
"""Columns of texts, and the beginning of the columns of their lengths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The files of a source, and how tables are made of them."""

    files: str
    """Regular expression over whole paths."""
    rows: Callable[[Files], Iterator[Row]]
    """Yields the rows of files that are sorted by path, with a prompt, with texts, or with both."""
    keys: tuple[str, ...] = ()
    """Columns that join a table of prompts; without any the prompts stay beside the lengths."""
    prompts: tuple[str, ...] = ("prompt",)
    """Further columns of the table of prompts, which the lengths lack."""

    def tables(
        self, files: Files, count: Callable[[Sequence[str]], list[int]]
    ) -> dict[str, pd.DataFrame]:
        """Return the tables "lengths" and, with keys, "prompts"; `count` gives tokens of texts."""
        rows = list(self.rows(files))
        if not self.keys:
            return {"lengths": _measured(rows, count)}
        columns = (*self.keys, *self.prompts)
        prompts = [{name: row[name] for name in columns} for row in rows if "prompt" in row]
        answers = [
            {name: value for name, value in row.items() if name not in self.prompts}
            for row in rows
            if row.keys() & _PARTS
        ]
        return {
            "prompts": pd.DataFrame(prompts).drop_duplicates(list(self.keys), ignore_index=True),
            "lengths": _measured(answers, count),
        }


def _measured(rows: Sequence[Row], count: Callable[[Sequence[str]], list[int]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    if "reasoning" in frame:
        frame["reasoning_visible"] = frame["reasoning"].str.strip() != ""
    for part, name in _PARTS.items():
        if part in frame:
            frame[f"{name}_tokens"] = count(frame.pop(part).tolist())
    return frame


def gpteacher(files: Files) -> Iterator[Row]:
    """Instructions and responses of three subsets, with the input after a blank line."""
    for path, place in files.items():
        subset = path.partition("/")[0].lower()
        for item in _json(place):
            yield {"subset": subset, "prompt": _instruction(item).strip(), "text": item["response"]}


def alpaca_davinci(files: Files) -> Iterator[Row]:
    """Instructions and responses in numbered shards."""
    for path in sorted(files, key=lambda path: int(path.rpartition("_")[2].partition("-")[0])):
        for item in _json(files[path]):
            yield {"prompt": _instruction(item), "text": item["output"]}


def alpaca_eval(files: Files) -> Iterator[Row]:
    """One file of outputs per model; attacks on the judge, which are no answers, are left out."""
    for path, place in files.items():
        if (model := path.split("/")[1]) not in ("NullModel", "gpt4_gamed"):
            for item in _json(place):
                yield {"prompt": item["instruction"], "model": model, "text": item["output"]}


def arena_hard(files: Files) -> Iterator[Row]:
    """Questions in one file, the answers of each model in another.

    Left out: the repository's own models, and one whose file is cut off.
    """
    for path, place in files.items():
        if (name := Path(path).name).startswith(("krikri", "yi-1.5-34b")):
            continue
        for line in filter(bytes.strip, place.read_bytes().split(b"\n")):
            item = json.loads(line)
            key = {"question_id": item["question_id"]}
            if name == "question.jsonl":
                yield key | {"prompt": item["turns"][0]["content"], "cluster": item["cluster"]}
            else:
                text = item["choices"][0]["turns"][0]["content"]
                yield key | {"model": Path(path).stem, "text": text}


def vicuna(files: Files) -> Iterator[Row]:
    """Lengths of four answers per id in one file, the conversations of the ids in another.

    The lengths are those that the source counted, in LLaMA tokens.
    """
    contents = {path: _json(place) for path, place in files.items()}
    chats = [chat for path in contents if "-length" not in path for chat in contents[path]]
    prompts = {str(chat["id"]): chat["conversations"][0]["value"] for chat in chats}
    for path, items in contents.items():
        for item in items if "-length" in path else ():
            yield {
                "prompt_id": int(item["id"]),
                "orig_split": "train" if "train" in path else "val",
                "prompt": prompts[item["id"]],
                "ref_llama_tokens": item["L_gt"],
                **{f"vicuna_tokens_t0_{n}": item[f"L_t0.{n}"] for n in (0, 3, 5, 7)},
            }


def misguided_attention(files: Files) -> Iterator[Row]:
    """One file per run of some models, with several answers to each prompt and their thoughts."""
    for place in files.values():
        for item in _json(place)["results"]:
            key, answers = {"prompt_id": item["prompt_id"]}, item["output"]
            yield key | {"prompt": item["prompt"]}
            thoughts = item.get("thinking") or [""] * len(answers)
            for sample, (answer, thought) in enumerate(zip(answers, thoughts, strict=True)):
                if answer:  # Some requests failed.
                    about = {"model": item["llm"], "sample": sample}
                    yield key | about | _reasoned(answer, thought)


def planbench(files: Files) -> Iterator[Row]:
    """One file per domain, model and task, with the providers' own replies and bills."""
    for path, place in files.items():
        _, _, domain, model, name = path.split("/")
        for item in _json(place)["instances"]:
            reply = item.get("response_object")
            if not isinstance(reply, dict) or not reply.get("usage"):
                continue  # The model was not called, or gave no answer.
            (choice,), bill = reply["choices"], reply["usage"]
            details = bill.get("completion_tokens_details") or {}
            message = choice["message"]
            yield {
                "prompt_id": f"{domain}/{name.removesuffix('.json')}/{item['instance_id']}",
                "prompt": item["query"],
                "model": model,
                "sample": 0,
                "finish": choice["finish_reason"],
                **_reasoned(message["content"] or "", message.get("reasoning_content")),
                "api_reasoning_tokens": details.get("reasoning_tokens"),
                "api_completion_tokens": bill["completion_tokens"],
            }


def pm_llm(files: Files) -> Iterator[Row]:
    """One file per question, and per model and question one with the answer."""
    for path, place in files.items():
        folder, name = path.split("/")
        if (found := re.fullmatch(r"(?:(.+)_)?(cat\d\d_.+)\.txt", name)) is None:
            continue
        model, task = found.groups()
        text = place.read_bytes().decode(errors="replace")
        if folder == "questions":
            yield {"prompt_id": task, "prompt": text.strip()}
        else:
            yield {"prompt_id": task, "model": model, "sample": 0} | _reasoned(text, None)


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _instruction(item: Mapping[str, Any]) -> str:
    return f"{item['instruction']}\n\n{item['input']}" if item["input"] else item["instruction"]


def _reasoned(answer: str, thought: str | None) -> Row:
    """Return reasoning and answer; an answer may begin with the reasoning and its end tag."""
    if not thought and ("</think>" in answer or answer.lstrip().startswith("<think>")):
        thought, _, answer = answer.lstrip().removeprefix("<think>").partition("</think>")
    return {"reasoning": thought or "", "answer": answer}


_PLANBENCH: Final = (
    r"llm_planning_analysis/results/[^/]+/(?:o1-mini_chat|o1-preview_chat|deepseek-r1-api)"
    r"/task_1_plan_generation_zero_shot[^/]*\.json"
)
LAYOUTS: Final = {
    "alpaca-davinci003": Layout(files=r"alpaca_data/file_\d+-\d+\.json", rows=alpaca_davinci),
    "alpaca-eval": Layout(files=r"results/[^/]+/model_outputs\.json", rows=alpaca_eval),
    "alpaca-vicuna7b": Layout(
        files=r"data/alpaca-(?:train|val)-10k(?:-length)?\.json", rows=vicuna
    ),
    "arena-hard": Layout(
        files=r"data/arena-hard-v0\.1/(?:question|model_answer/[^/]+)\.jsonl",
        rows=arena_hard,
        keys=("question_id",),
        prompts=("prompt", "cluster"),
    ),
    "gpteacher-gpt4": Layout(
        files=r"(?:Codegen/codegen|Roleplay/roleplay-simple-deduped-roleplay)-instruct\.json"
        r"|Toolformer/toolformer-dedupe-only-dataset\.json",
        rows=gpteacher,
    ),
    "misguided-attention": Layout(
        files=r"eval/results_(?:long_eval|reasoning_models)/output_queries_[^/]+\.json",
        rows=misguided_attention,
        keys=("prompt_id",),
    ),
    "planbench": Layout(files=_PLANBENCH, rows=planbench, keys=("prompt_id",)),
    "planbench-o1": Layout(files=_PLANBENCH, rows=planbench, keys=("prompt_id",)),
    "pm-llm-benchmark": Layout(
        files=r"(?:questions|answers)/.*cat\d.*\.txt", rows=pm_llm, keys=("prompt_id",)
    ),
}
