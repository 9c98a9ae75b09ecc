"""`python -m training collect`: response lengths of a model at an OpenAI-compatible endpoint."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from training.collection.collecting import CollectConfig, collect
from training.commands.options import OutputOptions, print_result, print_rows


def main(config: CollectConfig, output: OutputOptions) -> int:
    """Measure a model's response length to every prompt of a table.

    OUT gets one row per response: the prompt and counts in the model's own tokens, never the text
    of the response. card.yaml beside it describes OUT for `fit --data.dataset DIR/card.yaml`. The
    same command again continues an interrupted run. Requests to a busy endpoint (429, 5xx) are
    repeated after growing waits. Exit status 1: some prompts got no answer. The key is read from
    $OPENAI_API_KEY.

    example:
      python -m training collect --endpoint http://127.0.0.1:8000/v1 --model llama-3-8b \\
          --prompts prompts.jsonl --out lengths/llama-3-8b.jsonl --max-tokens 2048 --concurrency 64
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)
    result = collect(config, api_key=os.environ.get("OPENAI_API_KEY"))
    print_result(result, output, lambda: _print(result))
    return 1 if result["unanswered"] else 0


def _print(result: Mapping[str, Any]) -> None:
    unanswered = f"{result['unanswered']}, e.g. {result['first_refusal']}"
    rows = {
        "prompts": f"{result['prompts']} ({result['repeated_prompts']} repeats left out)",
        "responses": f"{result['rows']}, {result['new_rows']} of them new",
        "output tokens": result["output_tokens"],
        "  reasoning": result["reasoning_tokens"],
        "cut": f"{result['cut']} (longer than allowed: full length unknown)",
        "repeated requests": result["retries"],
        **({"without answer": unanswered} if result["unanswered"] else {}),
        "data card": result["card"],
    }
    print_rows(rows, 18)
