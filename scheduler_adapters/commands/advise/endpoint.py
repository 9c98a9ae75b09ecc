"""Step times of an engine, measured from outside, by when the answers to random words come.

Prompts that are sent alone for one token each give the time of a prefill; several that are sent at
once for many tokens each give that of a step with so many decodes. No prefix cache knows the words.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from random import SystemRandom
from statistics import fmean, median
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import Request, urlopen

import pandas as pd

from lengthwise.errors import ConfigError, DataError
from lengthwise.progress import Progress

_TIMEOUT_S: Final = 300.0
_REPEATS: Final = 3
_PREFILLS: Final = (1 / 32, 1 / 8, 1 / 4, 1 / 2, 0.9)
"""Lengths of prompts that are sent alone, in parts of the longest."""
_CONTEXTS: Final = (1 / 16, 1 / 4)
"""The same of those that are sent at once."""
_SEATS: Final = (1, 4, 16, 64)
_ANSWER_TOKENS: Final = 64
_LEAST_STEPS: Final = 8
"""Steps that a burst needs in which all of its requests decode."""
_TRIAL_WORDS: Final = 32
_WORDS: Final = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedAnswer:
    """A streamed answer; instants are seconds of one clock."""

    sent_s: float
    chunk_s: Sequence[float]
    """When its pieces came; a piece may hold several tokens."""
    prompt_tokens: int
    output_tokens: int


Ask = Callable[[Sequence[str], int], list[TimedAnswer]]
"""Sends prompts at once, for so many tokens each, and returns their answers."""


class Endpoint:
    """A model behind an OpenAI-style API; the key, if it needs one, is in $OPENAI_API_KEY.

    Raises:
        ConfigError: nobody answers there, or not in this way.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"endpoint is {url!r}; use an address such as http://127.0.0.1:8000/v1"
            )
        self.url = url.rstrip("/") + ("/v1" if parts.path in ("", "/") else "")
        self.model = ""
        self.round_trip_s = 0.0
        """Of a request that takes the server no time."""
        key = os.environ.get("OPENAI_API_KEY")
        self._headers = {"Content-Type": "application/json"}
        self._headers |= {"Authorization": f"Bearer {key}"} if key else {}
        taken_s = []
        for _ in range(_REPEATS):
            start_s = time.perf_counter()
            listed = b"".join(self._lines(f"{self.url}/models"))
            taken_s.append(time.perf_counter() - start_s)
        self.round_trip_s = median(taken_s)
        self.model = str(self._parsed(listed, lambda body: body["data"][0]["id"]))

    def ask(self, prompts: Sequence[str], max_tokens: int) -> list[TimedAnswer]:
        """Send prompts at once; return their answers, from which `round_trip_s` is taken off."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self._answer(prompt, max_tokens), prompts))

    def kv_memory(self) -> tuple[int, int] | None:
        """Return blocks and tokens of a block where the engine's /metrics say so, as vLLM's do."""
        try:
            text = b"".join(self._lines(urljoin(self.url, "/metrics"))).decode(errors="replace")
        except ConfigError:
            return None
        line = next(iter(re.findall(r"^vllm:cache_config_info\{.*$", text, re.M)), "")
        found = [re.search(rf'\b{name}="(\d+)"', line) for name in ("num_gpu_blocks", "block_size")]
        blocks, tokens = (int(match[1]) if match else 0 for match in found)
        return (blocks, tokens) if blocks and tokens else None

    def _answer(self, prompt: str, max_tokens: int) -> TimedAnswer:
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "stream": True}
        body |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
        chunk_s, usage, sent_s = [], None, time.perf_counter() + self.round_trip_s
        for line in self._lines(f"{self.url}/completions", json.dumps(body).encode()):
            if line.startswith(b"data: {"):
                piece = self._parsed(line[6:], dict)
                if piece.get("choices"):
                    chunk_s.append(time.perf_counter())
                usage = piece.get("usage") or usage
        names = ("prompt_tokens", "completion_tokens")
        counts = [count for name in names if isinstance(count := (usage or {}).get(name), int)]
        if not chunk_s or len(counts) < 2 or min(counts) < 1:
            raise ConfigError(
                f"{self.url} streams no answer with its usage, so its tokens cannot be counted; "
                "use an engine that does, such as vLLM"
            )
        return TimedAnswer(
            sent_s=min(sent_s, chunk_s[0]),
            chunk_s=chunk_s,
            prompt_tokens=counts[0],
            output_tokens=counts[1],
        )

    def _lines(self, url: str, body: bytes | None = None) -> Iterator[bytes]:
        try:
            with urlopen(Request(url, body, self._headers), timeout=_TIMEOUT_S) as response:
                yield from response
        except HTTPError as error:
            said = " ".join(error.read(300).decode(errors="replace").split())
            raise ConfigError(
                f"{url} answers HTTP {error.code} ({said}); check --endpoint, and the key in "
                "$OPENAI_API_KEY"
            ) from error
        except (OSError, HTTPException) as error:
            raise ConfigError(f"no answer from {url} ({error}); check --endpoint") from error

    def _parsed(self, text: bytes, of: Callable[[Any], Any]) -> Any:
        try:
            return of(json.loads(text))
        except (ValueError, TypeError, LookupError) as error:
            said = text[:60].decode(errors="replace")
            raise ConfigError(
                f"{self.url} answers {said!r}, which is no OpenAI-style API; check --endpoint (is "
                "/v1 missing?)"
            ) from error


def measure_steps(ask: Ask, *, most_tokens: int, most_seqs: int) -> pd.DataFrame:
    """Return rows of `fit_affine`: prefills of one prompt, and steps of 1 to 64 decodes.

    Args:
        most_tokens: budget of the engine's step: no prompt is longer.
        most_seqs: seats of the engine.

    Raises:
        DataError: answers end too soon to see a step of decodes.
    """
    (trial,) = ask([_prompt(_TRIAL_WORDS)], 1)  # also the first request, which is always slow
    words = most_tokens * _TRIAL_WORDS / trial.prompt_tokens
    seats = [count for count in _SEATS if count <= most_seqs]
    bursts = [(1, part, 1) for part in _PREFILLS]
    bursts += [(count, part, _ANSWER_TOKENS) for count in seats for part in _CONTEXTS]
    rows = []
    with Progress(_REPEATS * len(bursts)) as progress:
        for count, part, max_tokens in bursts * _REPEATS:
            answers = ask([_prompt(max(1, int(part * words))) for _ in range(count)], max_tokens)
            row = prefill_of(answers[0]) if max_tokens == 1 else decodes_of(answers)
            rows += [row] if row else []
            progress.step(f"{count} x {answers[0].prompt_tokens} tokens")
    table = pd.DataFrame(rows)
    if not table.get("num_decodes", pd.Series(dtype=float)).any():
        raise DataError(
            f"answers end before {_LEAST_STEPS} tokens, so no step of decodes could be timed; use "
            "an engine that takes ignore_eos, or give --fit"
        )
    return table


def prefill_of(answer: TimedAnswer) -> dict[str, float]:
    """Return the row of a prompt that was alone."""
    tokens = answer.prompt_tokens
    return {
        "num_decodes": 0.0,
        "decode_context": 0.0,
        "prefill_tokens": float(tokens),
        "attention_pairs": tokens * tokens / 2,
        "seconds": max(1e-6, answer.chunk_s[0] - answer.sent_s),
    }


def decodes_of(answers: Sequence[TimedAnswer]) -> dict[str, float] | None:
    """Return the mean step in which all of a burst decode; None where there are too few such."""
    start_s = max(answer.chunk_s[0] for answer in answers)
    end_s = min(answer.chunk_s[-1] for answer in answers)
    steps, context = [], 0.0
    for answer in answers:
        tokens_per_chunk = answer.output_tokens / len(answer.chunk_s)
        before = sum(at_s <= start_s for at_s in answer.chunk_s) * tokens_per_chunk
        steps.append(sum(start_s < at_s <= end_s for at_s in answer.chunk_s) * tokens_per_chunk)
        context += answer.prompt_tokens + before + steps[-1] / 2
    if end_s <= start_s or min(steps) < _LEAST_STEPS:
        return None
    return {
        "num_decodes": float(len(answers)),
        "decode_context": context,
        "prefill_tokens": 0.0,
        "attention_pairs": 0.0,
        "seconds": (end_s - start_s) / fmean(steps),
    }


def _prompt(num_words: int) -> str:
    return " ".join(SystemRandom().choices(_WORDS, k=num_words))
