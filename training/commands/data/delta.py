"""`python -m training delta`: the delta of ranking pairs, from repeated answers to each prompt."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from lengthwise.errors import DataError
from training.commands.options import OutputOptions, print_result, print_rows
from training.data.labels import TableOptions, lengths_of, read_prompts

RUNS: Final = 10
"""Answers to each prompt in the paper."""


def main(table: TableOptions, output: OutputOptions) -> None:
    """Find the delta of a model: the variation in length of its answers to one prompt.

    Pairs closer than delta are left out of training, because the next answers to the same prompts
    would reverse them. The input is the table of `collect --samples 10`, or any table with a row
    per answer. The variance of a prompt, as the paper defines it, is longest / shortest answer - 1;
    the median of the prompts stands beside the paper's .2 (.25 for a reasoning model). Delta is
    that limit in the measure by which pairs are compared, (longest - shortest) / longest. Both grow
    with the number of answers.

    example:
      python -m training delta --data lengths/m.jsonl
    """
    prompts = read_prompts(table, "output_tokens")
    repeated = [lengths for lengths in lengths_of(prompts) if len(lengths) > 1]
    if not repeated:
        raise DataError(f"no prompt has two answers or more; collect them with --samples {RUNS}")
    variance = float(np.median([max(lengths) / min(lengths) for lengths in repeated])) - 1
    result = {
        "delta": variance / (1 + variance),
        "variance": variance,
        "prompts": len(repeated),
        "answers_per_prompt": float(np.mean(list(map(len, repeated)))),
    }
    fit = f"python -m training fit pars --out run --loss.delta {result['delta']:.2f}"
    print_result(result, output, lambda: _print(result), fit)


def _print(result: Mapping[str, Any]) -> None:
    count = result["answers_per_prompt"]
    rows = {
        "prompts": f"{result['prompts']}, with {count:.3g} answers each (paper: {RUNS})",
        "variance": f"{result['variance']:.3f} of half of the prompts (paper: .2, reasoning .25)",
        "delta": f"{result['delta']:.3f}, the same limit as a share of the longer answer",
    }
    print_rows(rows, 19)
