"""Layouts of public sources: the files of each, and the tables that a card reads.

Lengths are BERT WordPiece counts without special tokens, words and characters of the response; the
sources keep texts, not counts. Rows keep the order of the source.
"""

from __future__ import annotations

import json
import re
import zipfile
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
        {"subset": path.partition("/")[0].lower(), "prompt": _instruction(item).strip()}
        | {"text": item["response"]}
        for path in files
        for item in _json(files[path])
    ]
    return {"lengths": _measured(rows, count)}


def alpaca_davinci(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """Instructions and responses in numbered shards."""
    shards = sorted(files, key=lambda path: int(path.rpartition("_")[2].partition("-")[0]))
    items = [item for path in shards for item in _json(files[path])]
    rows = [{"prompt": _instruction(item), "text": item["output"]} for item in items]
    return {"lengths": _measured(rows, count)}


def alpaca_eval(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One file of outputs per model; attacks on the judge, which are no answers, are left out."""
    rows = [
        {"prompt": item["instruction"], "model": path.split("/")[1], "text": item["output"]}
        for path in sorted(files)
        if path.split("/")[1] not in _ATTACKS
        for item in _json(files[path])
    ]
    return {"lengths": _measured(rows, count)}


def arena_hard(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """Questions in one file, the answers of each model in another.

    Left out: the repository's own models, and one whose file is cut off.
    """
    questions = [
        {"question_id": item["question_id"], "prompt": item["turns"][0]["content"]}
        | {"cluster": item["cluster"]}
        for path in files
        if path.endswith("question.jsonl")
        for item in _lines(files[path])
    ]
    answers = [
        {"question_id": item["question_id"], "model": Path(path).stem}
        | {"text": item["choices"][0]["turns"][0]["content"]}
        for path in sorted(files)
        if "model_answer" in path and not Path(path).name.startswith(("krikri", "yi-1.5-34b"))
        for item in _lines(files[path])
    ]
    return {"prompts": pd.DataFrame(questions), "lengths": _measured(answers, count)}


def zeroeval(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One file per task and model; the prompt is the first message of the chat."""
    rows = []
    for path in sorted(files):
        _, task, name = path.split("/")
        model = name.removesuffix(".json")
        rows += [
            {"dataset": task, "prompt_id": item["id"], "prompt": item["chat_history"][0]}
            | {"model": model, "hidden_reasoning": model.startswith("o1-")}
            | {"text": item["output"][0]}
            for item in _json(files[path])
        ]
    prompts = _pop_prompts(rows, "dataset", "prompt_id", "prompt")
    return {"prompts": prompts, "lengths": _measured(rows, count)}


def mmlu_pro(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One archive per model with its answers; the prompt is the question with lettered options."""
    rows = []
    for path in sorted(files):
        model = Path(path).name.removeprefix("model_outputs_").partition("_5shots")[0]
        with zipfile.ZipFile(files[path]) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith(".json") and n[:2] != "__")
            items = json.loads(archive.read(name))
        for item in items:
            if not isinstance(item, dict):
                continue  # One model's file has strings between the answers.
            lettered = [f"{chr(65 + n)}. {option}" for n, option in enumerate(item["options"])]
            prompt = "\n".join([item["question"], "Options:", *lettered])
            text = item.get("generated_text", item.get("model_outputs")) or ""
            about = {"question_id": int(item["question_id"]), "category": item["category"]}
            rows.append(about | {"prompt": prompt, "model": model, "text": text})
    prompts = _pop_prompts(rows, "question_id", "category", "prompt")
    return {"prompts": prompts, "lengths": _measured(rows, count)}


def vicuna(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """Lengths of four answers per id in one file, the conversations of the ids in another.

    The lengths are those that the source counted, in LLaMA tokens.
    """
    texts_by_id: dict[str, str] = {}
    counted = []
    for path in sorted(files):
        if path.endswith("-length.json"):
            split = "train" if "train" in path else "val"
            counted += [{"orig_split": split, **item} for item in _json(files[path])]
        else:
            texts_by_id |= {
                str(c["id"]): c["conversations"][0]["value"] for c in _json(files[path])
            }
    rows = [
        {"prompt_id": int(item["id"]), "orig_split": item["orig_split"]}
        | {"prompt": texts_by_id[item["id"]], "ref_llama_tokens": item["L_gt"]}
        | {f"vicuna_tokens_t0_{n}": item[f"L_t0.{n}"] for n in (0, 3, 5, 7)}
        for item in counted
    ]
    return {"lengths": pd.DataFrame(rows)}


def misguided_attention(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One file per run of some models, with several answers to each prompt and their thoughts."""
    prompts: dict[str, str] = {}
    rows = []
    for path in sorted(files):
        for item in _json(files[path])["results"]:
            prompts.setdefault(item["prompt_id"], item["prompt"])
            answers = item["output"]
            thoughts = item.get("thinking") or [""] * len(answers)
            for sample, (answer, thought) in enumerate(zip(answers, thoughts, strict=True)):
                about = {"prompt_id": item["prompt_id"], "model": item["llm"], "sample": sample}
                if answer:  # Some requests failed.
                    rows.append(about | _parts(answer, thought))
    prompt_rows = [{"prompt_id": key, "prompt": text} for key, text in prompts.items()]
    return {"prompts": pd.DataFrame(prompt_rows), "lengths": _reasoned(rows, count)}


def planbench(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One file per domain, model and task, with the providers' own replies and bills."""
    rows = []
    for path in sorted(files):
        _, _, domain, model, name = path.split("/")
        for item in _json(files[path])["instances"]:
            reply = item.get("response_object")
            if not isinstance(reply, dict) or not reply.get("usage"):
                continue  # The model was not called, or gave no answer.
            key = f"{domain}/{name.removesuffix('.json')}/{item['instance_id']}"
            (choice,), bill = reply["choices"], reply["usage"]
            details = bill.get("completion_tokens_details") or {}
            message = choice["message"]
            rows.append(
                {"prompt_id": key, "prompt": item["query"], "model": model, "sample": 0}
                | {"finish": choice["finish_reason"]}
                | _parts(message["content"] or "", message.get("reasoning_content"))
                | {"api_reasoning_tokens": details.get("reasoning_tokens")}
                | {"api_completion_tokens": bill["completion_tokens"]}
            )
    prompts = _pop_prompts(rows, "prompt_id", "prompt")
    return {"prompts": prompts, "lengths": _reasoned(rows, count)}


def pm_llm(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One file per question, and per model and question one with the answer."""
    prompt_rows, rows = [], []
    for path in sorted(files):
        folder, name = path.split("/")
        found = re.fullmatch(r"(?:(.+)_)?(cat\d\d_.+)\.txt", name)
        if found is None:
            continue
        model, task = found.groups()
        text = files[path].read_bytes().decode(errors="replace")
        if folder == "questions":
            prompt_rows.append({"prompt_id": task, "prompt": text.strip()})
        else:
            rows.append({"prompt_id": task, "model": model, "sample": 0} | _parts(text, None))
    return {"prompts": pd.DataFrame(prompt_rows), "lengths": _reasoned(rows, count)}


_MMLU_MODELS: Final = (
    "DeepSeek-Coder-V2|Meta-Llama-3_1-70B-Instruct|Mistral-7B-Instruct-v0.2"
    "|Mixtral-8x7B-Instruct-v0.1|Phi-3-mini-4k-instruct|Qwen1.5-72B-Chat|Yi-6b-Chat"
    "|c4ai-command-r-v01|gemini-1.5-pro-002|jamba-1.5-large|mathstral-7B"
)
_PLANBENCH: Final = (
    r"llm_planning_analysis/results/[^/]+/(?:o1-mini_chat|o1-preview_chat|deepseek-r1-api)"
    r"/task_1_plan_generation_zero_shot[^/]*\.json"
)
_ATTACKS: Final = frozenset(("NullModel", "gpt4_gamed"))
LAYOUTS: Final = {
    "alpaca-davinci003": Layout(files=r"alpaca_data/file_\d+-\d+\.json", build=alpaca_davinci),
    "alpaca-eval": Layout(files=r"results/[^/]+/model_outputs\.json", build=alpaca_eval),
    "alpaca-vicuna7b": Layout(
        files=r"data/alpaca-(?:train|val)-10k(?:-length)?\.json", build=vicuna
    ),
    "arena-hard": Layout(
        files=r"data/arena-hard-v0\.1/(?:question|model_answer/[^/]+)\.jsonl", build=arena_hard
    ),
    "gpteacher-gpt4": Layout(
        files=r"(?:Codegen/codegen|Roleplay/roleplay-simple-deduped-roleplay)-instruct\.json"
        r"|Toolformer/toolformer-dedupe-only-dataset\.json",
        build=gpteacher,
    ),
    "misguided-attention": Layout(
        files=r"eval/results_(?:long_eval|reasoning_models)/output_queries_[^/]+\.json",
        build=misguided_attention,
    ),
    "mmlu-pro-cot": Layout(
        files=rf"eval_results/model_outputs_(?:{_MMLU_MODELS})_5shots\.zip", build=mmlu_pro
    ),
    "planbench": Layout(files=_PLANBENCH, build=planbench),
    "planbench-o1": Layout(files=_PLANBENCH, build=planbench),
    "pm-llm-benchmark": Layout(files=r"(?:questions|answers)/.*cat\d.*\.txt", build=pm_llm),
    "zeroeval": Layout(
        files=r"result_dirs/(?:gsm|crux|math-l5|numersense-v2)/[^/]+\.json", build=zeroeval
    ),
}
"""Layouts by the id of the card."""


def _instruction(item: Mapping[str, Any]) -> str:
    return f"{item['instruction']}\n\n{item['input']}" if item["input"] else item["instruction"]


def _pop_prompts(rows: list[dict[str, Any]], *columns: str) -> pd.DataFrame:
    """The distinct prompts of the rows, which lose the columns `category` and `prompt`."""
    keys = [name for name in columns if name.endswith("_id") or name == "dataset"]
    prompts = pd.DataFrame(rows)[list(columns)].drop_duplicates(keys, ignore_index=True)
    for row in rows:
        for name in set(columns).difference(keys):
            del row[name]
    return prompts


def _measured(rows: list[dict[str, Any]], count: Count) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    texts = frame.pop("text")
    return frame.assign(
        output_chars=texts.str.len(),
        output_words=[len(text.split()) for text in texts],
        output_tokens=count(texts.tolist()),
    )


def _parts(answer: str, thought: str | None) -> dict[str, str]:
    """Reasoning and answer of a reply; an answer may begin with the reasoning and its end tag."""
    if not thought and ("</think>" in answer or answer.lstrip().startswith("<think>")):
        thought, _, answer = answer.lstrip().removeprefix("<think>").partition("</think>")
    return {"reasoning": thought or "", "answer": answer}


def _reasoned(rows: list[dict[str, Any]], count: Count) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    frame["reasoning_visible"] = frame["reasoning"].str.strip() != ""
    for part in ("reasoning", "answer"):
        texts = frame.pop(part)
        frame[f"{part}_chars"] = texts.str.len()
        frame[f"{part}_words"] = [len(text.split()) for text in texts]
        frame[f"{part}_tokens"] = count(texts.tolist())
    return frame


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
