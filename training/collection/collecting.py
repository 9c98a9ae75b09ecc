"""The lengths of an endpoint's responses to every prompt of a table, appended to a file."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from lengthwise.addresses import api_base, api_headers
from lengthwise.errors import ConfigError, DataError, raised_as, require
from lengthwise.progress import Progress
from lengthwise.settings import Count, Positive, settings
from lengthwise.tables.options import ReadingOptions
from lengthwise.tables.reading import read_log
from training.collection.answers import AnswerLog
from training.collection.endpoint import Api, Endpoint, PromptRefused
from training.data.cards import card_path, refuse_foreign_card, write_card
from training.data.records import prompt_hash

_OURS: Final = frozenset({"messages", "prompt", "n", "best_of", "stream"})

logger = logging.getLogger(__name__)


@settings
class CollectConfig:
    """Prompts, endpoint and settings of the requests."""

    endpoint: str
    """Base address of the API, e.g. http://127.0.0.1:8000/v1."""
    model: str
    """Name of the model at the endpoint."""
    prompts: Path
    """Parquet, JSONL or CSV file; prompts that differ only in case or spaces count once."""
    out: Path
    """JSONL file that rows are appended to."""
    prompt_column: str = "prompt"
    samples: Count = 1
    """Responses per prompt; with 2 or more `evaluate` gives the noise ceiling."""
    concurrency: Count = 16
    """Requests in flight; best is the batch size of the engine, often 64 to 256."""
    max_tokens: Count | None = None
    """Longer responses are cut and counted; their full length is unknown."""
    temperature: float | None = None
    """None: the endpoint's own; use the value of your service."""
    extra: dict[str, Any] | None = None
    """More fields of the request, as JSON: '{"top_p": 0.9}'."""
    api: Api = "chat"
    """completions sends the bare prompt, for models without a chat template."""
    timeout_s: Positive = 600.0
    """Limit of one response."""

    def __post_init__(self) -> None:
        if taken := sorted(_OURS.intersection(self.extra or {})):
            raise ConfigError(
                f"extra holds {', '.join(taken)}, which would break the counts; leave it out"
            )
        require("out", self.out, self.out.suffix == ".jsonl", "a name that ends in .jsonl")

    @property
    def settings(self) -> dict[str, Any]:
        """Return the fields of every request but the prompt."""
        limits = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        given = {name: value for name, value in limits.items() if value is not None}
        return {"model": self.model, **given, **(self.extra or {})}

    @property
    def request(self) -> str:
        """Return the settings as text, a column that is equal in all rows of a file."""
        return json.dumps({"api": self.api, **self.settings}, sort_keys=True)


def collect(config: CollectConfig, *, api_key: str | None = None) -> dict[str, Any]:
    """Collect every response that `config.out` lacks; returns the counts.

    Raises:
        ConfigError: a setting, the endpoint or a folder is wrong, or `out` has other settings.
        DataError: the prompts break their schema, or the endpoint does not count tokens.
        ServiceUnavailable: the endpoint is down; the collected rows are kept.
    """
    api_base(config.endpoint)  # before the prompts are read
    prompts, num_repeated = read_prompts(config.prompts, config.prompt_column)
    refuse_foreign_card(config.out)
    with closing(AnswerLog(config.out)) as log:
        done = _done(log, config)
        wanted = [(prompt, sample) for sample in range(config.samples) for prompt in prompts]
        jobs = [
            (text, sample) for text, sample in wanted if (prompt_hash(text), sample) not in done
        ]
        num_kept = len(log.rows)
        logger.info("%d responses wanted, %d of them missing", len(wanted), len(jobs))
        try:
            refused, num_retries = asyncio.run(_collect_all(config, jobs, log, api_key))
        finally:
            if log.rows:
                _describe(config, log.rows)
    return {
        "prompts": len(prompts),
        "repeated_prompts": num_repeated,
        "new_rows": len(log.rows) - num_kept,
        "unanswered": len(refused),
        "first_refusal": refused[0] if refused else None,
        "retries": num_retries,
        "rows": len(log.rows),
        "cut": sum(row["finish_reason"] == "length" for row in log.rows),
        "output_tokens": sum(row["output_tokens"] for row in log.rows),
        "reasoning_tokens": sum(row["reasoning_tokens"] for row in log.rows),
        "out": str(config.out),
        "card": str(card_path(config.out)),
    }


def read_prompts(path: Path, column: str) -> tuple[list[str], int]:
    """Return the distinct prompts of a table in its order, and the number of repeats."""
    frame = read_log(path, ReadingOptions(prompt_column=column), needs=("prompt",)).frame
    distinct = frame["prompt"][~frame["prompt"].map(prompt_hash).duplicated()].tolist()
    return distinct, len(frame) - len(distinct)


async def _collect_all(
    config: CollectConfig, jobs: Sequence[tuple[str, int]], log: AnswerLog, api_key: str | None
) -> tuple[list[str], int]:
    limit = config.concurrency
    limits = httpx.Limits(max_connections=limit, max_keepalive_connections=limit)
    refused: list[str] = []
    queue = iter(jobs)

    async def work() -> None:
        for prompt, sample in queue:
            try:
                length = await endpoint.complete(prompt)
            except PromptRefused as error:
                refused.append(str(error))
            else:
                row = {"prompt": prompt, "sample": sample, "model": config.model, **asdict(length)}
                row |= {"answer_tokens": length.answer_tokens, "request": config.request}
                log.append(row)
            progress.step("prompts")

    headers, timeout_s = api_headers(api_key), config.timeout_s
    async with httpx.AsyncClient(
        headers=headers, limits=limits, timeout=timeout_s, follow_redirects=True
    ) as client:
        endpoint = Endpoint(client, api_base(config.endpoint), config.settings, config.api)
        with Progress(len(jobs), log=logger.info) as progress:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(limit, len(jobs))):
                        group.create_task(work())
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
    return refused, endpoint.num_retries


def _done(log: AnswerLog, config: CollectConfig) -> set[tuple[str, int]]:
    mine, done = config.request, set()
    for number, row in enumerate(log.rows):
        text = "not a row that collect wrote; choose another --out"
        kinds = KeyError, TypeError, ValueError, AttributeError
        with raised_as(DataError, text, *kinds, path=log.path, row=number):
            key = prompt_hash(row["prompt"]), int(row["sample"])
            theirs = row["request"]
        if theirs != mine:
            raise ConfigError(
                f"{log.path} was collected with {theirs}, not with {mine}; choose another --out"
            )
        done.add(key)
    return done


def _describe(config: CollectConfig, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ["prompt", "output_tokens", "model", "sample"]
    if any(row["reasoning_tokens"] for row in rows):
        columns += ["reasoning_tokens", "answer_tokens"]
    write_card(
        config.out,
        columns=columns,
        rows=len(rows),
        source=f"collected from {urlsplit(config.endpoint).hostname}",
        tokenizer=f"{config.model} (usage.completion_tokens)",
        notes=f"request: {config.request}",
    )
