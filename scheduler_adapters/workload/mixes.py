"""Named lengths of requests: fitted distributions.

    requests = draw_lengths("alpaca-eval", 2000, seed=0)

The lengths behind PASCAL's evaluation are not public. The fits here are log-normal; prompt,
reasoning and answer are drawn independently. They keep the one figure of the paper: more than 70%
of the chats have fewer than 1,000 reasoning tokens.
"""

from typing import Final, Literal, get_args

import numpy as np

from lengthwise.errors import ConfigError
from scheduler_adapters.workload.arrivals import LENGTH_STREAM
from scheduler_adapters.workload.requests import Ints, Requests, make_requests

_LONGEST: Final = 16_384
"""Tokens of the longest prompt, reasoning and answer."""
_LONGEST_CHAT, _CHAT_MEDIANS = 4096, (200, 160)
"""Of chats without reasoning: prompt and answer are log-normal with a sigma of 1."""


MIXES: Final = {
    # Prompts: AlpacaEval's (median 22, P90 74 tokens). Answers: GPT-4o mini's to them (422, 782).
    # Reasoning: Gemini 2.5 Pro's on the short questions of MisguidedAttention (median 498), spread
    # as Gemini 2.5 Flash's and Claude 3.7's there; 82% below 1,000.
    "alpaca-eval": ((22, 0.95), (498, 0.75), (422, 0.48)),
    # Prompts: Arena-Hard's (median 32, P90 246). Answers: o1-preview's to them, whose reasoning is
    # not in them (1,130, 2,023). Reasoning: median set so that the paper's 70% are below 1,000.
    "arena-hard": ((32, 1.59), (650, 0.80), (1130, 0.45)),
    # MATH, GPQA, LiveCodeBench. Prompts and answers: MATH level 5 in ZeroEval, by o1-preview (151
    # and 437). Reasoning: DeepSeek-R1's billed tokens on PlanBench (median 2,045).
    "reasoning-heavy": ((151, 0.37), (2045, 1.10), (437, 0.48)),
}
"""Median and sigma (of logarithms) of prompt, reasoning and answer; spreads are fitted to the 90%
quantile, those of reasoning to the deviation of logarithms."""
Lengths = Literal["chat", "alpaca-eval", "arena-hard", "reasoning-heavy", "half-reasoning-heavy"]
"""The last: each request at random of `arena-hard` or of `reasoning-heavy`."""


def draw_lengths(name: str, count: int, *, seed: int) -> Requests:
    """Return `count` requests at 0 s with lengths of this name in `Lengths`.

    Raises ConfigError for another name.
    """
    random = np.random.default_rng((seed, LENGTH_STREAM))
    if name == "chat":
        prompt, answer = (
            np.clip(random.lognormal(np.log(median), 1.0, count), 1, _LONGEST_CHAT).astype(np.int64)
            for median in _CHAT_MEDIANS
        )
        reasoning = np.zeros_like(answer)
    elif name in MIXES:
        prompt, reasoning, answer = _drawn(name, count, random)
    elif name == "half-reasoning-heavy":
        chats, heavy = (_drawn(kind, count, random) for kind in ("arena-hard", "reasoning-heavy"))
        prompt, reasoning, answer = np.where(random.random(count) < 0.5, chats, heavy)
    else:
        raise ConfigError(f"no lengths named {name!r}; use one of {', '.join(get_args(Lengths))}")
    return make_requests(
        prompt_tokens=prompt, output_tokens=reasoning + answer, reasoning_tokens=reasoning
    )


def _drawn(name: str, count: int, random: np.random.Generator) -> Ints:
    fits = [random.lognormal(np.log(median), sigma, count) for median, sigma in MIXES[name]]
    return np.clip(np.rint(fits), 1, _LONGEST).astype(np.int64)
