"""Small logs of each format that is read, with invented prompts and numbers."""

import json
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def chat(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A request and the response to it, as a gateway logs them."""
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": prompt}]
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
    response = {"id": "chatcmpl-1", "object": "chat.completion", "model": "m-1", "usage": usage}
    return {"request": {"model": "m", "messages": messages}, "response": response} | more


def rows_of(name: str) -> Rows:
    """The rows of a log in this folder."""
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


HERE = Path(__file__).parent
OPENAI = rows_of("openai.jsonl")
"""Two chats, a completion in the same second as the second one, a response, a refusal."""
LITELLM = rows_of("litellm.jsonl")
"""A row of LiteLLM_SpendLogs with store_prompts_in_spend_logs, two standard logging payloads."""
LANGFUSE = rows_of("langfuse.jsonl")
"""Two rows of the API, and one of the export to blob storage, whose texts are JSON inside JSON."""
BATCH: Rows = [
    {
        "custom_id": f"r{n}",
        "body": {"model": "m", "messages": [{"role": "user", "content": f"prompt {n}"}]},
        "response": {"status_code": 200, "body": {"usage": {"completion_tokens": n + 1}}},
    }
    for n in range(3)
]
VLLM_OLD = (HERE / "vllm-old.txt").read_text()
VLLM_NEW = (HERE / "vllm-new.txt").read_text()


def write_files(folder: Path, rows: list[Any]) -> list[Path]:
    """Write JSON lines; "---" among the rows begins the next file."""
    pieces: list[Rows] = [[]]
    for row in rows:
        pieces[-1].append(row) if row != "---" else pieces.append([])
    return [write_lines(folder / f"{number}.jsonl", one) for number, one in enumerate(pieces)]


def write_lines(path: Path, rows: Rows) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
