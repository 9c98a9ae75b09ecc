"""A server that has small repositories at the addresses of a mirror, for as long as it is open."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from training.sources.repositories import blob_hash


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _lines(*values: Any) -> bytes:
    return b"".join(_json(value) + b"\n" for value in values)


def _answer(question: int, text: str) -> dict[str, Any]:
    turns = [{"content": text, "token_len": 3}]
    return {"question_id": f"q{question}", "choices": [{"index": 0, "turns": turns}]}


def _item(number: int, text: str) -> dict[str, Any]:
    return {"id": f"i{number}", "chat_history": [f"prompt {number}"], "output": [text]}


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
    "WildEval/ZeroEval": {
        "result_dirs/gsm/m.json": _json([_item(1, "a b c"), _item(2, "a")]),
        "result_dirs/crux/o1-mini.json": _json([_item(1, "a b")]),
        "result_dirs/alpaca_eval/m.json": b"not fetched",
    },
}


def _zip(name: str, value: Any) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, _json(value))
        archive.writestr(f"__MACOSX/{name}", b"not read")
    return content.getvalue()


def _question(key: str, text: str) -> dict[str, Any]:
    asked = {"question_id": 70, "question": "Which?", "options": ["This", "That"], "category": "c"}
    return {**asked, key: text}


def _instance(number: int, answer: str, thought: str | None, reasoned: int) -> dict[str, Any]:
    message = {"content": answer, "reasoning_content": thought}
    bill = {"completion_tokens": 90, "completion_tokens_details": {"reasoning_tokens": reasoned}}
    reply = {"choices": [{"finish_reason": "stop", "message": message}], "usage": bill}
    return {"instance_id": number, "query": f"Plan {number}.", "response_object": reply}


_LENGTHS = {"L_gt": 3, "L_t0.7": 70, "L_t0.5": 50, "L_t0.3": 30, "L_t0.0": 9}
_PLANS = "llm_planning_analysis/results/blocksworld"
_TASK = "task_1_plan_generation_zero_shot.json"
REPOSITORIES |= {
    "TIGER-AI-Lab/MMLU-Pro": {
        "eval_results/model_outputs_mathstral-7B_5shots.zip": _zip(
            "m.json", [_question("generated_text", "It is this"), "not an answer"]
        ),
        "eval_results/model_outputs_jamba-1.5-large_5shots.zip": _zip(
            "j.json", [_question("model_outputs", "That")]
        ),
        "eval_results/model_outputs_Yi-34B_5shots.zip": b"a model that is not in the card",
    },
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
                    | {"output": ["No", None, "No way"], "thinking": ["it is dead", "", ""]},
                ]
            }
        ),
        "eval/results_reasoning_models/output_queries_q.json": _json(
            {
                "results": [
                    {"prompt_id": "cat", "prompt": "Is it alive?", "llm": "q"}
                    | {"output": ["<think>a box</think>Dead"]},
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


class Hub:
    """The server's address, and how often each path was asked for."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: Counter[str] = Counter()
        self.files = {source: dict(files) for source, files in REPOSITORIES.items()}
        """What the lists say of each repository."""
        self.served: dict[str, bytes] = {}
        """Other content for a path than its list says."""
        self.cuts_lists = False
        """Lists of whole repositories are cut, as GitHub cuts long ones."""
        self.broken: set[str] = set()
        """Paths that get an error."""

    def answer(self, path: str) -> bytes | None:
        """Return what is at a path; None for an error."""
        path, _, recursive = path.partition("?")
        kind, owner, name, commit, *rest = unquote(path).strip("/").split("/")
        files, file = self.files[f"{owner}/{name}"], "/".join(rest)
        self.asked[file] += 1
        if kind == "trees" and self.cuts_lists and not commit.startswith("folder-"):
            if recursive:
                return _json({"tree": [], "truncated": True})
            folders = sorted({file.partition("/")[0] for file in files if "/" in file})
            trees = [{"path": f, "type": "tree", "sha": f"folder-{f}"} for f in folders]
            return _json({"tree": trees})
        if kind == "trees":
            inside = f"{commit.removeprefix('folder-')}/" if commit.startswith("folder-") else ""
            tree = [
                {"path": key.removeprefix(inside), "type": "blob"}
                | {"size": len(value), "sha": blob_hash(value)}
                for key, value in files.items()
                if key.startswith(inside)
            ]
            return _json({"tree": [*tree, {"path": "folder", "type": "tree", "sha": ""}]})
        return None if file in self.broken else self.served.get(file, files.get(file))


@contextmanager
def open_hub() -> Iterator[Hub]:
    """Serve the repositories on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = hub.answer(self.path)
            self.send_response(500 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
