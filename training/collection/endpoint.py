"""An OpenAI-compatible endpoint: a prompt in, the counted tokens of its response out.

The text of a response is dropped. Kept are its length and its reasoning's, by the endpoint's count.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import httpx

from lengthwise.addresses import error_message, shown
from lengthwise.errors import ConfigError, DataError, ServiceUnavailable

Api = Literal["chat", "completions"]

_RETRY: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_WRONG_ENDPOINT: Final = frozenset({401, 402, 403, 404, 405})
MAX_ATTEMPTS: Final = 10
"""Attempts per prompt; the waits between them grow from half a second to a minute."""
_FIRST_DELAY_S: Final = 0.5
_MAX_DELAY_S: Final = 60.0
_MAX_FIRST_REFUSALS: Final = 10
_THINK_END: Final = "</think>"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseLength:
    """Length of one response, in tokens of the responding model."""

    output_tokens: int
    """Reasoning and answer together."""
    reasoning_tokens: int
    finish_reason: str
    """`length`: the response was cut, so its full length is unknown."""
    reasoning_from: Literal["usage", "text", "none"]
    """text: without a count of the endpoint, the total was divided in the ratio of the characters
    of reasoning and answer."""

    @property
    def answer_tokens(self) -> int:
        return self.output_tokens - self.reasoning_tokens


class PromptRefused(DataError):
    """The endpoint refuses this prompt, e.g. as too long, but answers others."""


@dataclass
class Endpoint:
    """Client of one model; several tasks may call `complete` at once."""

    client: httpx.AsyncClient
    url: str
    settings: Mapping[str, Any]
    """Fields of every request but the prompt."""
    api: Api = "chat"
    num_retries: int = 0
    num_answered: int = 0
    num_refused: int = 0
    jitter: random.Random = field(default_factory=lambda: random.Random(0))

    async def complete(self, prompt: str) -> ResponseLength:
        """Send the prompt, with growing waits between attempts if the endpoint is busy or broken.

        Raises:
            PromptRefused: this prompt gets no answer, while others do.
            ConfigError: the address, the key, the model or a setting is wrong for every prompt.
            ServiceUnavailable: the endpoint is down.
            DataError: the endpoint does not count tokens.
        """
        answered_before = self.num_answered
        reason = ""
        path, body = "/completions", {**self.settings, "prompt": prompt}
        if self.api == "chat":
            messages = [{"role": "user", "content": prompt}]
            path, body = "/chat/completions", {**self.settings, "messages": messages}
        for attempt in range(MAX_ATTEMPTS):
            retry_after = ""
            try:
                response = await self.client.post(self.url + path, json=body)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
                if isinstance(error, httpx.ConnectError) and not self.num_answered:
                    raise ConfigError(
                        f"no server answers at {shown(self.url)} ({error}); check --endpoint"
                    ) from error
            else:
                if response.status_code == httpx.codes.OK:
                    length = measure(_parsed(response, self.url))
                    self.num_answered += 1
                    return length
                reason = f"HTTP {response.status_code}: {error_message(response.text)}"
                if response.status_code not in _RETRY:
                    raise self._refusal(response.status_code, reason)
                retry_after = response.headers.get("retry-after", "").strip()
            if attempt + 1 < MAX_ATTEMPTS:
                self.num_retries += 1
                delay_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2**attempt)
                delay_s *= self.jitter.uniform(0.5, 1)  # Tasks that failed together retry apart.
                least_s = float(retry_after) if retry_after.isdecimal() else 0.0
                await asyncio.sleep(max(delay_s, least_s))
        if self.num_answered > answered_before:
            raise PromptRefused(f"{MAX_ATTEMPTS} attempts, the last: {reason}")
        raise ServiceUnavailable(
            f"{shown(self.url)} failed {MAX_ATTEMPTS} times in a row, the last: {reason}; what was "
            "collected is kept: run the same command again once it is back"
        )

    def _refusal(self, status: int, reason: str) -> Exception:
        if status in _WRONG_ENDPOINT:
            return ConfigError(
                f"{shown(self.url)} refuses to answer ({reason}); check --endpoint, --model and "
                "the key"
            )
        self.num_refused += 1
        if not self.num_answered and self.num_refused >= _MAX_FIRST_REFUSALS:
            return ConfigError(
                f"{shown(self.url)} refuses every prompt, the last: {reason}; check --model, "
                "--max-tokens and --extra"
            )
        return PromptRefused(reason)


def measure(body: Mapping[str, Any]) -> ResponseLength:
    """Return the lengths in the JSON of a response."""
    usage, choice = body.get("usage") or {}, (body.get("choices") or [{}])[0]
    total = usage.get("completion_tokens")
    if not isinstance(total, int):
        raise DataError(
            f"the endpoint answers without usage.completion_tokens (its usage is {usage}), so "
            "lengths cannot be counted; use one that reports usage"
        )
    counted = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    source: Literal["usage", "text", "none"] = "usage" if counted else "none"
    reasoning, answer = _texts(choice)
    if reasoning and not counted:
        source, counted = "text", round(total * (len(reasoning) / len(reasoning + answer)))
    return ResponseLength(
        output_tokens=total,
        reasoning_tokens=min(counted, total),
        finish_reason=str(choice.get("finish_reason") or "unknown"),
        reasoning_from=source,
    )


def _texts(choice: Mapping[str, Any]) -> tuple[str, str]:
    message = choice.get("message") or {}
    content = str(message.get("content") or choice.get("text") or "")
    if apart := message.get("reasoning_content") or message.get("reasoning"):
        return str(apart), content
    before, tag, after = content.partition(_THINK_END)
    if tag:
        return before + tag, after
    return (content, "") if content.lstrip().startswith("<think>") else ("", content)


def _parsed(response: httpx.Response, url: str) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ConfigError(
            f"{shown(url)} answers {response.text[:60]!r}, not JSON; check --endpoint (is /v1 "
            "missing?)"
        )
    return body
