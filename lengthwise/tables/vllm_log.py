"""Requests in the log of a vLLM server, each from several lines.

Source: `RequestLogger` of vLLM (vllm/entrypoints/logger.py, since 0.30
vllm/entrypoints/serve/utils/request_logger.py). Older versions have the prompt and the token ids in
the lines of request and response. Newer versions write separate "details" at DEBUG only.
"""

import ast
import re
from typing import Final

from lengthwise.tables.files import BadRow, Row
from lengthwise.tables.formats import LogFormat
from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.values import seconds_of, unpacked

OPTIONS: Final = (
    "start vLLM with VLLM_LOGGING_LEVEL=DEBUG, --enable-log-requests and --enable-log-outputs, and "
    "for streamed answers --enable-log-deltas"
)
VLLM: Final = LogFormat(name="vLLM", without_prompt=OPTIONS, without_length=OPTIONS)
_LINE: Final = re.compile(
    r"(?:(?P<day>\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d) .*?)?"
    r"(?P<what>Received request|Generated response|Request) (?P<id>[\w.-]+)"
    r"(?P<stream> \(streaming (?:delta|complete)\))?(?P<details> details| JSON body)?: (?P<rest>.*)"
)
_PROMPT: Final = re.compile(r"prompt: (?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_PROMPT_IDS: Final = re.compile(r"prompt_token_ids: (?P<ids>\[[\d, ]*\])")
_OUTPUT_IDS: Final = re.compile(r"output_token_ids: [\[(](?P<ids>[\d, ]*)[\])]")
_NO_TEXT: Final = re.compile(r"<streaming_complete: (?P<count>\d+) tokens>")
_YEAR: Final = "2000-"
"""The log has no year; a leap year has every day."""
_USER_TURNS: Final = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"<\|im_start\|>user\n(.*?)<\|im_end\|>",
        r"<\|start_header_id\|>user<\|end_header_id\|>\s*(.*?)<\|eot_id\|>",
        r"<start_of_turn>user\n(.*?)<end_of_turn>",
        r"<\uff5cUser\uff5c>(.*?)<\uff5cAssistant\uff5c>",
        r"\[INST\]\s*(.*?)\s*\[/INST\]",
        r"<\|user\|>\s*(.*?)<\|(?:end|assistant)\|>",
    )
)
"""User's turn in the templates of Qwen, Llama 3, Gemma, DeepSeek, Mistral, and Phi or GLM."""


def vllm_rows(text: str) -> list[Row | BadRow]:
    """Return a row per answered request, in order of arrival, without missing values."""
    requests: dict[str, Row] = {}
    for line in text.split("\n"):
        entry = unpacked(line)
        if isinstance(entry, dict):  # a line in JSON, by VLLM_LOGGING_CONFIG_PATH
            line = f"{entry.get('asctime', '')} {entry.get('message', '')}"
        if (found := _LINE.search(line)) is not None:
            _read(found, requests)
    # Without an answer: an embedding, an aborted request, or an answer after the end of the log.
    return [request for request in requests.values() if request.pop("is_answered", False)]


def _read(line: re.Match[str], requests: dict[str, Row]) -> None:
    rest, key = line["rest"], _core(line["id"])
    request = requests.setdefault(key, {})
    if line["what"] == "Generated response":
        request["is_answered"] = True
        if (found := _OUTPUT_IDS.search(rest)) is not None:
            count = found["ids"].count(",") + bool(found["ids"].strip(", "))
            count -= found["ids"].rstrip().endswith(",")
            is_part = line["stream"] == " (streaming delta)"
            request["output_tokens"] = count + is_part * request.get("output_tokens", 0)
        elif (counted := _NO_TEXT.search(rest)) is not None:
            request["output_tokens"] = int(counted["count"])
        return
    if line["day"] and "arrival_s" not in request:
        request["arrival_s"] = seconds_of(f"{_YEAR}{line['day']} {line['time']}")
    if line["details"] == " JSON body":
        body = unpacked(rest)  # a text if --max-log-len cut it
        if isinstance(body, dict) and (prompt := prompt_of(body)) is not None:
            request["prompt"] = prompt
        return
    if (quoted := _PROMPT.search(rest)) is not None and "prompt" not in request:
        request["prompt"] = user_turn(ast.literal_eval(quoted["text"]))
    if (ids := _PROMPT_IDS.search(rest)) is not None:
        request["prompt_tokens"] = ids["ids"].count(",") + 1


def _core(request_id: str) -> str:
    """Return the part of an id that all lines of a request share, without prefix and "-0"."""
    return re.sub(r"^(?:chatcmpl|cmpl|resp)[-_]|-\d{1,3}$", "", request_id)


def user_turn(prompt: str) -> str:
    """Return the user's newest turn in a prompt by a chat template; else the prompt."""
    for pattern in _USER_TURNS:
        if turns := pattern.findall(prompt):
            return str(turns[-1]).strip() or prompt
    return prompt
