"""Small git repositories in the layouts of the public sources."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _lines(*values: Any) -> bytes:
    return b"".join(_json(value) + b"\n" for value in values)


def _answer(question: int, text: str) -> dict[str, Any]:
    turns = [{"content": text, "token_len": 3}]
    return {"question_id": f"q{question}", "choices": [{"index": 0, "turns": turns}]}


REPOSITORIES: dict[str, dict[str, bytes]] = {
    "teknium1/GPTeacher": {
        "Codegen/codegen-instruct.json": _json(
            [
                {"instruction": "Add.", "input": "1, 2\n", "response": "It is three"},
                {"instruction": "Greet.", "input": "", "response": "Hello"},
            ]
        ),
        "Roleplay/roleplay-simple-deduped-roleplay-instruct.json": _json(
            [{"instruction": "Be a bee.", "input": "", "response": "Buzz buzz"}]
        ),
        "Toolformer/toolformer-dedupe-only-dataset.json": _json(
            [{"instruction": "Call.", "input": "", "response": "Called"}]
        ),
        "README.md": b"not fetched",
    },
    "stayanti/alpaca-gpt-4": {
        f"alpaca_data/file_{first}-{first + 24}.json": _json(
            [{"instruction": f"Do {first}.", "input": "", "output": "Done. " * (first + 1)}]
        )
        for first in (25, 0, 100)
    },
    "tatsu-lab/alpaca_eval": {
        f"results/{model}/model_outputs.json": _json([{"instruction": "Why?", "output": text}])
        for model, text in (("m", "So it is."), ("a model", "Because."), ("NullModel", "cheat"))
    },
    "meltemi-ai/arena-hard-auto-english": {
        "data/arena-hard-v0.1/question.jsonl": _lines(
            {"question_id": "q1", "cluster": "maths", "turns": [{"content": "One?"}]},
            {"question_id": "q2", "cluster": "code", "turns": [{"content": "Two?"}]},
        ),
        "data/arena-hard-v0.1/model_answer/m.jsonl": _lines(
            _answer(1, "Yes, one"), _answer(2, "2")
        ),
        "data/arena-hard-v0.1/model_answer/krikri-run4.jsonl": _lines(_answer(1, "own")),
    },
}


def _instance(number: int, answer: str, thought: str | None, reasoned: int) -> dict[str, Any]:
    message = {"content": answer, "reasoning_content": thought}
    bill = {"completion_tokens": 90, "completion_tokens_details": {"reasoning_tokens": reasoned}}
    reply = {"choices": [{"finish_reason": "stop", "message": message}], "usage": bill}
    return {"instance_id": number, "query": f"Plan {number}.", "response_object": reply}


_LENGTHS = {"L_gt": 3, "L_t0.7": 70, "L_t0.5": 50, "L_t0.3": 30, "L_t0.0": 9}
_PLANS = "llm_planning_analysis/results/blocksworld"
_TASK = "task_1_plan_generation_zero_shot.json"
REPOSITORIES |= {
    "zhengzangw/Sequence-Scheduling": {
        f"data/alpaca-{part}-10k{kind}.json": _json([{"id": number, **content}])
        for part, number in (("train", "5"), ("val", "1"))
        for kind, content in (
            ("-length", _LENGTHS),
            ("", {"conversations": [{"value": f"Say {number}."}, {"value": "..."}]}),
            ("-instruct", {"conversations": []}),
        )
    },
    "cpldcpu/MisguidedAttention": {
        "eval/results_long_eval/output_queries_m.json": _json(
            {
                "results": [
                    {"prompt_id": "cat", "prompt": "Is it alive?", "llm": "m"}
                    | {"output": ["No", None, "No way"], "thinking": ["it is dead", "", ""]}
                ]
            }
        ),
        "eval/results_reasoning_models/output_queries_q.json": _json(
            {
                "results": [
                    {"prompt_id": "cat", "prompt": "Is it alive?", "llm": "q"}
                    | {"output": ["<think>a box</think>Dead"]}
                ]
            }
        ),
        "eval/results_implant_experiment/output_queries.json": b"not fetched",
    },
    "karthikv792/LLMs-Planning": {
        f"{_PLANS}/deepseek-r1-api/{_TASK}": _json(
            {"instances": [_instance(1, "Pick up", "Let me see", 60), {"instance_id": 2}]}
        ),
        f"{_PLANS}/o1-mini_chat/{_TASK}": _json(
            {"instances": [_instance(1, "Stack it", None, 64)]}
        ),
        f"{_PLANS}/gpt-4_chat/{_TASK}": b"not fetched",
    },
    "fit-alessandro-berti/pm-llm-benchmark": {
        "questions/cat01_01_case.txt": b"Which cases?\n",
        "questions/cat07_01_graph.png": b"not fetched",
        "answers/some_model_cat01_01_case.txt": b"<think>two cases</think>\nTwo",
        "answers/other_cat01_01_case.txt": b"one case only</think>One",
        "answers/quiet_cat01_01_case.txt": b"Three\r\ncases",
    },
}


def write_repositories(folder: Path) -> dict[str, str]:
    """Write the repositories as OWNER/NAME, as a git server has them; returns their commits."""
    return {source: commit(folder / source, files) for source, files in REPOSITORIES.items()}


def commit(root: Path, files: Mapping[str, bytes]) -> str:
    """Commit files to a repository that serves single files; returns the commit."""

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(root), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    git("init", "--quiet")
    for setting in ("allowFilter", "allowAnySHA1InWant"):
        git("config", f"uploadpack.{setting}", "true")
    git("add", ".")
    git("commit", "--quiet", "--message=files")
    return git("rev-parse", "HEAD")
