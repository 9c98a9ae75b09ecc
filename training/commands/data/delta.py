"""`python -m training delta`: the delta of ranking pairs, from repeated answers to each prompt."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from lengthwise.errors import DataError
from training.commands.options import OutputOptions, print_result, print_rows
from training.data.labels import TableOptions, observed, read_prompts
from training.data.pairs import relative_gap

RUNS: Final = 10
"""Answers to each prompt in the paper."""
_PAIRS: Final = 100_000


def main(table: TableOptions, output: OutputOptions) -> None:
    """Find the delta of a model: the variation in length of its answers to one prompt.

    Pairs closer than delta are left out of training, because the next answers to the same prompts
    would reverse them. The input is the table of `collect --samples 10`, or any table with a row
    per answer. The variation of a prompt is (longest - shortest) / longest of its answers, the
    measure by which pairs are compared. Delta is the limit that half of the prompts stay within. It
    grows with the number of answers. The paper takes ten, and .2 (.25 for a reasoning model).

    example:
      python -m training delta --data lengths/m.jsonl
    """
    repeated = [item for item in read_prompts(table, "output_tokens") if len(item.lengths) > 1]
    if not repeated:
        raise DataError(f"no prompt has two answers or more; collect them with --samples {RUNS}")
    variation = np.array([1 - min(item.lengths) / max(item.lengths) for item in repeated])
    lengths, delta = observed(repeated), float(np.median(variation))
    rng = np.random.default_rng(0)
    gaps = relative_gap(*lengths[rng.integers(len(lengths), size=(2, _PAIRS))])
    result = {
        "delta": delta,
        "prompts": len(repeated),
        "answers_per_prompt": float(np.mean([len(item.lengths) for item in repeated])),
        "variation": {str(q): float(np.quantile(variation, q)) for q in (0.1, 0.5, 0.8, 0.9)},
        "pairs_kept": float(np.mean(gaps >= delta)),
    }
    fit = f"python -m training fit pars --out run --loss.delta {delta:.2f}"
    print_result(result, output, lambda: _print(result), fit)


def _print(result: Mapping[str, Any]) -> None:
    count = result["answers_per_prompt"]
    rows = {
        "prompts": f"{result['prompts']}, with {count:.3g} answers each (paper: {RUNS})",
        **{
            f"variation, {float(q):4.0%}": f"{value:.3f}"
            for q, value in result["variation"].items()
        },
        "delta": f"{result['delta']:.3f}, of half of the prompts",
        "pairs kept by it": f"{result['pairs_kept']:.1%}",
    }
    print_rows(rows, 19)
