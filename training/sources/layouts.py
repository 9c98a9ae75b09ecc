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


def mmlu_pro(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One archive per model with its answers; the prompt is the question with lettered options."""
    questions: dict[int, dict[str, Any]] = {}
    rows = []
    for path in sorted(files):
        model = Path(path).name.removeprefix("model_outputs_").partition("_5shots")[0]
        with zipfile.ZipFile(files[path]) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith(".json") and n[:2] != "__")
            items = json.loads(archive.read(name))
        for item in items:
            if not isinstance(item, dict):
                continue  # One model's file has strings between the answers.
            number = int(item["question_id"])
            lettered = [f"{chr(65 + n)}. {option}" for n, option in enumerate(item["options"])]
            prompt = "\n".join([item["question"], "Options:", *lettered])
            about = {"category": item["category"], "prompt": prompt}
            questions.setdefault(number, {"question_id": number, **about})
            text = item.get("generated_text", item.get("model_outputs")) or ""
            rows.append({"question_id": number, "model": model, "text": text})
    return {"prompts": pd.DataFrame(questions.values()), "lengths": _measured(rows, count)}


def vicuna(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """Lengths of four answers per id in one file, the conversations of the ids in another.

    The lengths are those that the source counted, in LLaMA tokens.
    """
    asked: dict[str, str] = {}
    counted = []
    for path in sorted(files):
        if path.endswith("-length.json"):
            split = "train" if "train" in path else "val"
            counted += [{"orig_split": split, **item} for item in _json(files[path])]
        else:
            asked |= {str(c["id"]): c["conversations"][0]["value"] for c in _json(files[path])}
    rows = [
        {"prompt_id": int(item["id"]), "orig_split": item["orig_split"]}
        | {"prompt": asked[item["id"]], "ref_llama_tokens": item["L_gt"]}
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
    asked = [{"prompt_id": key, "prompt": text} for key, text in prompts.items()]
    return {"prompts": pd.DataFrame(asked), "lengths": _reasoned(rows, count)}


def planbench(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One file per domain, model and task, with the providers' own replies and bills."""
    prompts: dict[str, str] = {}
    rows = []
    for path in sorted(files):
        _, _, domain, model, name = path.split("/")
        for item in _json(files[path])["instances"]:
            reply = item.get("response_object")
            if not isinstance(reply, dict) or not reply.get("usage"):
                continue  # Not asked, or without an answer.
            key = f"{domain}/{name.removesuffix('.json')}/{item['instance_id']}"
            prompts.setdefault(key, item["query"])
            (choice,), bill = reply["choices"], reply["usage"]
            details = bill.get("completion_tokens_details") or {}
            message = choice["message"]
            rows.append(
                {"prompt_id": key, "model": model, "sample": 0, "finish": choice["finish_reason"]}
                | _parts(message["content"] or "", message.get("reasoning_content"))
                | {"api_reasoning_tokens": details.get("reasoning_tokens")}
                | {"api_completion_tokens": bill["completion_tokens"]}
            )
    asked = [{"prompt_id": key, "prompt": text} for key, text in prompts.items()]
    return {"prompts": pd.DataFrame(asked), "lengths": _reasoned(rows, count)}


def pm_llm(files: Files, count: Count) -> dict[str, pd.DataFrame]:
    """One file per question, and per model and question one with the answer."""
    asked, rows = [], []
    for path in sorted(files):
        folder, name = path.split("/")
        found = re.fullmatch(r"(?:(.+)_)?(cat\d\d_.+)\.txt", name)
        if found is None:
            continue
        model, task = found.groups()
        text = files[path].read_bytes().decode(errors="replace")
        if folder == "questions":
            asked.append({"prompt_id": task, "prompt": text.strip()})
        else:
            rows.append({"prompt_id": task, "model": model, "sample": 0} | _parts(text, None))
    return {"prompts": pd.DataFrame(asked), "lengths": _reasoned(rows, count)}


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


def _parts(answer: str, thought: str | None) -> dict[str, str]:
    """Reasoning and answer of a reply; thoughts may stand in the answer, up to their end tag."""
    if not thought and ("</think>" in answer or answer.lstrip().startswith("<think>")):
        thought, _, answer = answer.lstrip().removeprefix("<think>").partition("</think>")
    return {"reasoning": thought or "", "answer": answer}


def _reasoned(rows: list[dict[str, Any]], count: Count) -> pd.DataFrame:
    """The rows with the lengths of their reasoning and answers, which are left out."""
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
