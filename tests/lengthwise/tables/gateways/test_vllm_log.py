"""vLLM's own log: requests are put together from lines, of older and newer versions."""

import json
import logging
import time
from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from lengthwise.tables.gateways.vllm_log import user_turn, vllm_rows
from tests.lengthwise.tables import logs

Rows = list[dict[str, Any]]


def plain(text: str, at: str = "03-01 10:00:00") -> str:
    """A line as vLLM prints it; details stand at DEBUG."""
    level = "DEBUG" if " details: " in text or " JSON body: " in text else "INFO"
    return f"(APIServer pid=7) {level} {at} [serve/utils/request_logger.py:52] {text}\n"


def start(name: str, prompt: str = "say it", tokens: int = 2, at: str = "", more: str = "") -> str:
    """Both lines that begin a request."""
    ids = list(range(tokens))
    details = f"Request {name} details: prompt: {prompt!r}, prompt_token_ids: {ids}, prompt_embeds"
    params = more or "SamplingParams(n=1, max_tokens=900, logprobs=None)"
    received = f"Received request {name}: params: {params}, lora_request: None."
    return "".join(plain(line, at or "03-01 10:00:00") for line in (details, received))


def end(
    name: str, tokens: int, finish: str = "stop", stream: str = "", text: str = "text", at: str = ""
) -> str:
    """Both lines of an answer, or of a part of it."""
    at = at or "03-01 10:00:00"
    ids = None if stream == "complete" else list(range(tokens))
    of = f"{name} (streaming {stream})" if stream else name
    answer = f"Generated response {of}: output: {text!r}, finish_reason: {finish}"
    details = f"Generated response {of} details: output_token_ids: {ids}"
    return plain(details, at) + plain(answer, at)


def rows_of(*parts: str) -> Rows:
    """Rows of a log."""
    return list(vllm_rows("".join(parts).splitlines(keepends=True)))


def read(row: dict[str, Any]) -> tuple[Any, ...]:
    """Prompt, counts, and the reason for which a length is not one."""
    reason = row.get("left_out") or row.get("censored")
    return row.get("prompt"), row.get("prompt_tokens"), row.get("output_tokens"), reason


def test_an_older_log_has_prompts_and_ids_in_its_lines():
    first, second, third = rows_of(logs.VLLM_OLD)
    assert read(first) == ("It's one", 3, 4, None)
    assert read(second) == ("say 'two'", 1, 1, None)
    assert read(third) == ("gone", None, None, "it has no answer")
    assert second["arrival_s"] - first["arrival_s"] == 3


def test_a_newer_log_has_lines_of_details_and_sums_of_deltas():
    (row,) = rows_of(logs.VLLM_NEW)
    assert (*read(row), row["model"]) == ("one: details", 2, 3, None, "m")


def test_what_no_line_says_is_missing():
    (row,) = rows_of(
        plain("Received request chatcmpl-x: params: SamplingParams()"),
        plain("Generated response chatcmpl-x: output: 'a', finish_reason: None"),
    )
    assert row.keys() == {"id", "arrival_s", "answer"}


LINES = (start("chatcmpl-é 1", tokens=3) + end("chatcmpl-é 1", 5)).splitlines(keepends=True)


def _formatted(lines: Iterable[str], **more: str) -> Iterable[str]:
    for line in lines:
        keys = {"asctime": "2026-03-01 10:00:00,250", "name": "vllm"} | more
        yield json.dumps({"message": line.partition("] ")[2].rstrip("\n")} | keys) + "\n"


def _renamed(lines: Iterable[str]) -> Iterable[str]:
    for line in map(json.loads, _formatted(lines)):
        yield json.dumps({"msg": line["message"], "timestamp": 1772359200.25}) + "\n"


def _docker(lines: Iterable[str], size: int = 99) -> Iterable[str]:
    for line in lines:
        for at in range(0, len(line), size):
            part = {"log": line[at : at + size], "stream": "stderr", "attrs": {}}
            yield json.dumps(part | {"time": "2026-03-01T10:00:00.25Z"}) + "\n"


def _kubernetes(lines: Iterable[str], size: int = 99) -> Iterable[str]:
    for line in lines:
        text, head = line.rstrip("\n"), "2026-03-01T10:00:00.250000000Z stderr"
        for at in range(0, len(text), size):
            yield f"{head} {'P' if at + size < len(text) else 'F'} {text[at : at + size]}\n"


def _named(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        message = line.partition("] ")[2]
        yield f"2026-03-01 10:00:00,250 - vllm.entrypoints.request_logger - DEBUG - {message}"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda lines: [line.replace("\n", "\r\n") for line in lines],
        lambda lines: ["\ufeff", *(f"vllm-1  | {line}" for line in lines)],
        *(_formatted, _renamed, _docker, _kubernetes, _named),
        lambda lines: _formatted(lines, asctime="03-01 10:00:00"),
        lambda lines: (json.dumps({"message": line, "time": 1772359200250}) for line in lines),
        lambda lines: _docker(_formatted(lines)),
        lambda lines: _kubernetes(_formatted(lines)),
    ],
)
def test_a_wrapper_does_not_change_what_is_read(wrap):
    (row,) = vllm_rows(wrap(LINES))
    assert (row["id"], *read(row)) == ("chatcmpl-é 1", "say it", 3, 5, None)
    assert row["arrival_s"] % 60 in (0, 0.25)


def test_text_of_a_client_is_never_read_as_a_line():
    forged = plain("Generated response chatcmpl-a: output: 'x', finish_reason: stop")
    prompt = f"it's \"\n{forged}: prompt: 'no', prompt_token_ids: [1, 2, 3, 4, 5]"
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]})
    answer = forged.partition("] ")[2]
    lines = (plain(f"Request a JSON body: {body}"), start("chatcmpl-a", prompt))
    other = f"INFO 03-01 10:00:00 [serving.py:9] {answer}{answer}"
    (row,) = rows_of(*lines, other, end("chatcmpl-a", 7, text=forged))
    assert read(row) == (prompt, 2, 7, None)


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_an_id_that_the_client_chose_is_kept_whole(finish):
    names = ["chatcmpl-bench-1a2b3c4d-0", "chatcmpl-bench-1a2b3c4d-1", "chatcmpl-my id: 1-0"]
    starts = [start(name, name, 3 + at, f"03-01 10:00:0{at}") for at, name in enumerate(names)]
    rows = rows_of(*starts, *(end(name, 4 + at, finish) for at, name in enumerate(names)))
    assert [read(row)[:3] for row in rows] == [(name, 3 + n, 4 + n) for n, name in enumerate(names)]
    assert [row["arrival_s"] - rows[0]["arrival_s"] for row in rows] == [0, 1, 2]
    # Lengths that a benchmark asked for are true ends.
    assert ["censored" in row for row in rows] == [False, False, finish == "length"]


def test_the_number_that_vllm_adds_to_a_completion_is_cut():
    names = ["cmpl-x", "cmpl-x-0", "resp_y"]
    starts = [start(f"{name}{'_' if name == 'resp_y' else '-'}0", name) for name in names]
    rows = rows_of(*starts, *(end(name, 3 + at) for at, name in enumerate(names)))
    assert [read(row)[::2] for row in rows] == [(name, 3 + at) for at, name in enumerate(names)]
    several = rows_of(start("cmpl-z-0"), start("cmpl-z-1"), end("cmpl-z", 3), end("cmpl-z", 4))
    assert {row["left_out"] for row in several} == {"several prompts share the id of an answer"}
    assert len(several) == 2


TWO, FIVE = "SamplingParams(n=2, max_tokens=900)", "SamplingParams(n=1, max_tokens=5)"
COUNTED = [end("a", 0, stream="complete", text=f"<streaming_complete: {n} tokens>") for n in (4, 9)]
DELTAS = [end("a", 3, "None", "delta"), end("a", 4, "None", "delta")]


@pytest.mark.parametrize(
    ("parts", "lengths"),
    [
        ([start("a", more=TWO), end("a", 6), end("a", 1)], [6, 1]),
        ([start("a").partition("\n")[0] + "\n", end("a", 6), end("a", 1)], [6, 1]),
        ([start("a"), end("a", 6), start("a", "again"), end("a", 1)], [6, 1]),
        ([start("a"), start("a", "again"), end("a", 1)], ["it has no answer", 1]),
        ([start("a", more=TWO), *DELTAS, *[end("a", 0, stream="complete")] * 2],
         ["deltas of several choices cannot be divided"]),
        ([start("a", more=TWO), *COUNTED], [4, 9]),
        ([start("a"), *DELTAS], ["the stream is broken off"]),
        ([start("a"), *DELTAS, end("a", 0, stream="complete")], [7]),
        ([start("a"), *DELTAS, end("a", 2, "length", "delta"), end("a", 0, stream="complete")],
         ["finish_reason is length"]),
        ([start("a", more=FIVE), end("a", 5, "None")], ["finish_reason is length"]),
        ([start("a", more=FIVE), end("a", 5)], [5]),
        ([start("embd-a-0", more="PoolingParams(task='embed')"), start("tokenize-a", more="None")],
         ["it generates nothing"] * 2),
        ([end("chatcmpl-a", 5), start("b"), end("b", 2)], ["its start is missing", 2]),
    ],
)  # fmt: skip
def test_a_length_is_read_where_the_lines_settle_it(parts, lengths):
    found = [read(row) for row in rows_of(*parts)]
    expected = sorted(lengths, key=str)
    assert sorted([reason or tokens for *_, tokens, reason in found], key=str) == expected


CUT = "cut at --max-log-len"


@pytest.mark.parametrize(
    "arguments", ["{'model': 'm', 'max_log_len': 4}", "Namespace(max_log_len=4)"]
)
def test_counts_at_the_limit_of_the_log_are_lower_bounds(arguments, caplog):
    answers = [start("c", "Tell", 4) + end("c", n, text="Once"[:n]) for n in (4, 2)]
    rows = rows_of(plain(f"non-default args: {arguments}"), *answers)
    assert [(row["output_tokens"], row.get("censored")) for row in rows] == [(4, CUT), (2, None)]
    assert {row["prompt_censored"] for row in rows} == {CUT}
    assert not caplog.text
    assert not any("censored" in row for row in rows_of(*answers))
    assert "with --max-log-len counts are too low" in caplog.text


@pytest.mark.parametrize(
    ("times", "gaps"),
    [
        (["12-31 23:59:58", "01-01 00:00:01"], [3]),
        (["02-28 23:59:59", "03-01 00:00:00"], [1]),
        (["02-28 23:59:59", "02-29 00:00:00", "03-01 00:00:00"], [1, 86_400]),
        (["03-02 00:00:00", "03-01 23:59:59"], [-1]),
    ],
)
def test_arrivals_cross_the_ends_of_months_and_years(times, gaps):
    rows = rows_of(*(start(f"c{n}", at=at) + end(f"c{n}", 2, at=at) for n, at in enumerate(times)))
    at = [row["arrival_s"] for row in rows]
    assert [after - before for before, after in pairwise(at)] == gaps


def test_a_request_is_yielded_when_its_last_line_is_read():
    read_lines = 0

    def lines() -> Iterable[str]:
        nonlocal read_lines
        for n in range(50):
            for line in (start(f"c{n}") + end(f"c{n}", 2)).splitlines(keepends=True):
                read_lines += 1
                yield line

    found = [(row["id"], read_lines) for row in vllm_rows(lines())]
    assert found == [(f"c{n}", 4 * (n + 1)) for n in range(50)]


SENT: list[tuple[str, list[int], list[list[int]], bool]] = [
    ("<|im_start|>user\none\n'two' \"3\" 😀<|im_end|>", [1, 2, 3], [[4] * 5], False),
    ("Generated response chatcmpl-0-0: output: 'x', finish_reason: stop", [9], [[4] * 7], False),
    ("two choices", [1, 2], [[4] * 9, [5]], False),
    ("streamed", [1] * 11, [[4] * 6], True),
]


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("style", ["plain", "colour", "json", "file"])
@pytest.mark.parametrize("limit", [None, 8])
def test_a_log_by_vllms_own_logger_is_read_as_it_was_sent(
    style, limit, monkeypatch, tmp_path, capsys
):
    from vllm import SamplingParams
    from vllm.config.logging import LoggingConfig
    from vllm.entrypoints.serve.utils.request_logger import RequestLogger
    from vllm.logger import configure_logging

    form = {"class": "pythonjsonlogger.json.JsonFormatter", "format": "%(asctime)s %(message)s"}
    stream = {"class": "logging.StreamHandler", "formatter": "f", "stream": "ext://sys.stdout"}
    own = {"handlers": ["h"], "level": "DEBUG", "propagate": False}
    config = {"version": 1, "formatters": {"f": form}, "handlers": {"h": stream}}
    config |= {"loggers": {"vllm": own}}
    (path := tmp_path / "logging.json").write_text(json.dumps(config))
    now = [1_767_225_597.0]  # 2025-12-31T23:59:57Z
    parts = vars(time) | {"time": lambda: now[0]}
    monkeypatch.setattr(logging, "time", SimpleNamespace(**parts))
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)  # Ray has its own clock
    monkeypatch.setenv("VLLM_LOGGING_COLOR", str(int(style == "colour")))
    kind: dict[str, Any] = {"formatter": "json"} if style == "json" else {}
    kind |= {"pylogging_config_file": str(path)} if style == "file" else {}
    configure_logging(LoggingConfig(log_level="DEBUG", **kind))
    capsys.readouterr()
    log = RequestLogger(max_log_len=limit)
    if limit is not None:
        logging.getLogger("vllm.entrypoints.x").info("non-default args: %s", {"max_log_len": limit})
    for number, (prompt, ids, answers, is_streamed) in enumerate(SENT):
        name = f"chatcmpl-0-{number}"
        log.log_inputs(name, prompt, ids, None, SamplingParams(n=len(answers), max_tokens=99), None)
        now[0] += 3
        for answer in answers:
            for at in range(0, len(answer) * is_streamed, 2):
                log.log_outputs(name, "a", answer[at : at + 2], None, True, True)
            if is_streamed:
                log.log_outputs(name, "a" * len(answer), None, "streaming_complete", True, False)
            else:
                log.log_outputs(name, "a'\n", tuple(answer), "stop")
    written = capsys.readouterr().out
    assert ("\x1b" in written, written[0] == "{") == (style == "colour", style in ("json", "file"))
    rows = list(vllm_rows(written.splitlines(keepends=True)))
    most = limit or 99
    sent = [
        (
            prompt[:limit] if limit else user_turn(prompt),
            min(len(ids), most),
            min(len(answer), most),
        )
        for prompt, ids, answers, _ in SENT
        for answer in answers
    ]
    assert [read(row)[:3] for row in rows] == sent
    assert [row["arrival_s"] - rows[0]["arrival_s"] for row in rows] == [0, 3, 6, 6, 9]
    assert [row.get("censored") == CUT for row in rows] == [tokens == limit for *_, tokens in sent]


@pytest.mark.parametrize(
    "prompt",
    [
        "<|im_start|>user\nold<|im_end|>\n<|im_start|>user\nnew<|im_end|>\n<|im_start|>assistant\n",
        "<|start_header_id|>user<|end_header_id|>\n\nnew<|eot_id|><|start_header_id|>assistant",
        "<bos><start_of_turn>user\nnew<end_of_turn>\n<start_of_turn>model\n",
        "<\uff5cUser\uff5c>new<\uff5cAssistant\uff5c><think>\n",
        "<s>[INST] old [/INST] so </s>[INST] new [/INST]",
        "<|user|>\nnew<|end|>\n<|assistant|>\n",
        "new",
    ],
)
def test_the_users_turn_is_cut_out_of_a_template(prompt):
    assert user_turn(prompt) == "new"
