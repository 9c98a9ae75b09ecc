"""Step times of an engine, measured by the arrival times of its answers to random words.

Single prompts with one output token each measure a prefill. Several simultaneous prompts with many
output tokens each measure a step with that number of decodes. No prefix cache holds random words.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import SystemRandom
from statistics import fmean, median
from typing import Any, Final
from urllib.parse import urljoin

import httpx
import pandas as pd

from lengthwise.addresses import api_base, api_headers, error_message, shown
from lengthwise.errors import ConfigError, DataError
from lengthwise.progress import Progress
from scheduler_adapters.simulator.latency.affine_fit import COLUMNS

_TIMEOUT_S: Final = 300.0
_REPEATS: Final = 3
_PREFILLS: Final = (1 / 32, 1 / 8, 1 / 4, 1 / 2, 0.9)
"""Lengths of single prompts, as fractions of the longest."""
_CONTEXTS: Final = (1 / 16, 1 / 4)
"""Lengths of simultaneous prompts, as fractions of the longest."""
_SEATS: Final = (1, 4, 16, 64)
_ANSWER_TOKENS: Final = 64
_LEAST_STEPS: Final = 8
"""Least number of steps in which all requests of a burst decode."""
_TRIAL_WORDS: Final = 32
_WORDS: Final = "time year people way day man thing woman life child world school state"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedAnswer:
    """A streamed answer; instants are seconds of one clock."""

    sent_s: float
    chunk_s: Sequence[float]
    """Arrival times of the chunks; a chunk may hold several tokens."""
    prompt_tokens: int
    output_tokens: int


Ask = Callable[[Sequence[str], int], list[TimedAnswer]]
"""Sends prompts at once, with a number of output tokens each, and returns their answers."""


class Endpoint:
    """A model behind an OpenAI-style API; the key, if needed, is in $OPENAI_API_KEY."""

    def __init__(self, url: str) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self.url = api_base(url)
        # Each request opens a connection, so that round_trip_s is that of every request.
        self._client = httpx.Client(
            headers=api_headers(os.environ.get("OPENAI_API_KEY")),
            timeout=_TIMEOUT_S,
            limits=httpx.Limits(max_keepalive_connections=0),
            follow_redirects=True,
        )
        taken_s = []
        for _ in range(_REPEATS):
            start_s = time.perf_counter()
            listed = b"".join(self._lines(f"{self.url}/models"))
            taken_s.append(time.perf_counter() - start_s)
        self.round_trip_s = median(taken_s)
        """Time of a request that needs no computation."""
        self.model = str(self._parsed(listed, lambda body: body["data"][0]["id"]))

    def ask(self, prompts: Sequence[str], max_tokens: int) -> list[TimedAnswer]:
        """Send prompts at once; return their answers, without `round_trip_s`."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self._answer(prompt, max_tokens), prompts))

    def kv_memory(self) -> tuple[int, int] | None:
        """Return blocks and tokens of a block if /metrics has them in vLLM's form."""
        try:
            text = b"\n".join(self._lines(urljoin(self.url, "/metrics"))).decode(errors="replace")
        except ConfigError:
            return None
        counts = [
            re.search(rf'^vllm:cache_config_info\{{.*\b{name}="([1-9]\d*)"', text, re.M)
            for name in ("num_gpu_blocks", "block_size")
        ]
        blocks, tokens = (count and int(count[1]) for count in counts)
        return (blocks, tokens) if blocks and tokens else None

    def _answer(self, prompt: str, max_tokens: int) -> TimedAnswer:
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "stream": True}
        body |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
        chunk_s, usage, sent_s = [], None, time.perf_counter() + self.round_trip_s
        for line in self._lines(f"{self.url}/completions", body):
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

    def _lines(self, url: str, body: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        rest = b""
        try:
            with self._client.stream("POST" if body else "GET", url, json=body) as response:
                if not response.is_success:
                    said = error_message(response.read().decode(errors="replace"))
                    raise ConfigError(
                        f"{shown(url)} answers HTTP {response.status_code} ({said}); check "
                        "--endpoint, and the key in $OPENAI_API_KEY"
                    )
                # Not iter_lines, which also splits at U+2028 inside an answer.
                for part in response.iter_bytes():
                    *lines, rest = (rest + part).split(b"\n")
                    yield from lines
        except httpx.HTTPError as error:
            raise ConfigError(f"no answer from {shown(url)} ({error}); check --endpoint") from error
        yield rest

    def _parsed(self, text: bytes, of: Callable[[Any], Any]) -> Any:
        try:
            return of(json.loads(text))
        except (ValueError, TypeError, LookupError) as error:
            said = text[:60].decode(errors="replace")
            raise ConfigError(
                f"{shown(self.url)} answers {said!r}, which is no OpenAI-style API; check "
                "--endpoint (is /v1 missing?)"
            ) from error


def measure_steps(ask: Ask, *, most_tokens: int, most_seqs: int) -> pd.DataFrame:
    """Return rows of `fit_affine`: prefills of one prompt, and steps of 1 to 64 decodes.

    `most_tokens` is the token budget of a step and the limit of a prompt.
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
    table = pd.DataFrame(rows, columns=[*COLUMNS, "attention_pairs"], dtype=float).fillna(0.0)
    if not table["num_decodes"].any():
        raise DataError(
            f"answers end before {_LEAST_STEPS} tokens, so no step of decodes could be timed; use "
            "an engine that takes ignore_eos, or give --fit"
        )
    return table.assign(seconds=table["seconds"].clip(lower=1e-6))


def prefill_of(answer: TimedAnswer) -> dict[str, float]:
    """Return the row of a single prompt."""
    tokens, seconds = answer.prompt_tokens, answer.chunk_s[0] - answer.sent_s
    return {"prefill_tokens": tokens, "attention_pairs": tokens**2 / 2, "seconds": seconds}


def decodes_of(answers: Sequence[TimedAnswer]) -> dict[str, float] | None:
    """Return the mean step in which a whole burst decodes; None for fewer than 8 such steps."""
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
    seconds = (end_s - start_s) / fmean(steps)
    return {"num_decodes": len(answers), "decode_context": context, "seconds": seconds}


def _prompt(num_words: int) -> str:
    return " ".join(SystemRandom().choices(_WORDS.split(), k=num_words))
