"""vLLM's own log: requests are put together from lines, of older and newer versions."""

import json

import pytest

from lengthwise.tables.vllm_log import user_turn, vllm_rows
from tests.lengthwise.tables import logs


def test_an_older_log_has_prompts_and_ids_in_its_lines() -> None:
    first, second = vllm_rows(logs.VLLM_OLD)
    assert (first["prompt"], first["prompt_tokens"], first["output_tokens"]) == ("It's one", 3, 4)
    assert (second["prompt"], second["output_tokens"]) == ("say 'two'", 1)
    assert second["arrival_s"] - first["arrival_s"] == 3


def test_a_newer_log_has_lines_of_details_and_sums_of_deltas() -> None:
    (row,) = vllm_rows(logs.VLLM_NEW)
    assert (row["prompt"], row["prompt_tokens"], row["output_tokens"]) == ("one: details", 2, 3)


def test_a_log_in_json_lines_is_read_by_its_messages() -> None:
    lines = [
        json.dumps({"asctime": line[9:23], "levelname": "INFO", "message": line[24:]})
        for line in logs.VLLM_OLD.replace("INFO ", "INFO     ").splitlines()[1:]
    ]
    assert [row["output_tokens"] for row in vllm_rows("\n".join(lines))] == [4, 1]


def test_what_no_line_says_is_missing() -> None:
    text = (
        "INFO 03-01 10:00:00 [logger.py:60] Received request chatcmpl-x: params: SamplingParams()\n"
        "INFO 03-01 10:00:00 [logger.py:60] Generated response chatcmpl-x: output: 'a', finish: no"
    )
    (row,) = vllm_rows(text)
    assert row.keys() == {"arrival_s"}


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
def test_the_users_turn_is_cut_out_of_a_template(prompt: str) -> None:
    assert user_turn(prompt) == "new"
