"""`python -m training collect`: length labels from any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from jsonargparse import ActionYesNo

from scoring_service.command_line import underscored
from scoring_service.errors import ConfigError, DataError
from training.collection.answers import AnswerLog
from training.command_line import configure_logging, make_parser
from training.data.card_writer import card_path, refuse_foreign_card, write_card
from training.data.records import prompt_hash, prompts_of, read_table, require_columns

if TYPE_CHECKING:
    from training.collection.endpoint import Endpoint

DESCRIPTION: Final = """Ask a model every prompt of a table and write down how long it answers.

OUT gets one row per response: the prompt and counts in the model's own tokens, never the text of
the response. card.yaml beside it describes OUT, so that
`python -m training fit demo --data.dataset DIR/card.yaml` works at once. The same command again
goes on where the last one stopped, however it stopped: every prompt gets one row. A busy endpoint
(429, 5xx) is asked again, ever more slowly. Exit status 1: some prompts got no answer; the same
command tries those again.

The key is read from $OPENAI_API_KEY. Dashes and underscores in options are the same.

example:
  python -m training collect --endpoint http://127.0.0.1:8000/v1 --model llama-3-8b \\
      --prompts prompts.jsonl --out lengths/llama-3-8b.jsonl --max-tokens 2048 --concurrency 64
"""

_OURS: Final = frozenset({"messages", "prompt", "n", "best_of", "stream"})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """What is asked of whom."""

    endpoint: str
    """Base address of the API, e.g. http://127.0.0.1:8000/v1."""
    model: str
    """Name of the model at the endpoint."""
    prompts: Path
    """Parquet, JSONL or CSV file. Prompts that differ only in case or spaces are asked once."""
    out: Path
    """JSONL file that rows are appended to."""
    prompt_column: str = "prompt"
    samples: int = 1
    """Responses per prompt; with 2 or more `evaluate` can tell the noise ceiling."""
    concurrency: int = 16
    """Requests in flight. An engine is fastest with as many as it batches, often 64 to 256."""
    max_tokens: int | None = None
    """Longer responses are cut, and counted: their true length is not known."""
    temperature: float | None = None
    """None leaves the endpoint's own; use what your service uses."""
    extra: dict[str, Any] | None = None
    """More fields of the request, as JSON: '{"top_p": 0.9}'."""
    api: Literal["chat", "completions"] = "chat"
    """completions sends the bare prompt, for models without a chat template."""
    timeout_s: float = 600.0
    """Of one response."""
    max_attempts: int = 10
    """Of one prompt; the waits between them grow from half a second to a minute."""

    def __post_init__(self) -> None:
        for name in ("samples", "concurrency", "max_attempts", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; use 1 or more")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}; use seconds above 0")
        if taken := sorted(_OURS.intersection(self.extra or {})):
            raise ConfigError(
                f"extra holds {', '.join(taken)}, which would spoil the counting; leave it out"
            )
        if self.out.suffix != ".jsonl":
            raise ConfigError(f"out is {self.out}; use a name that ends in .jsonl")

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of every request but the prompt."""
        limits = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        given = {name: value for name, value in limits.items() if value is not None}
        return {"model": self.model, **given, **(self.extra or {})}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One response that is wanted."""

    prompt: str
    sample: int


def main(argv: Sequence[str]) -> int:
    """Entry point of the command; 1 where some prompts got no answer."""
    parser = make_parser(
        "collect", "--endpoint URL --model M --prompts FILE --out FILE.jsonl [options]", DESCRIPTION
    )
    parser.add_class_arguments(CollectConfig, as_group=False)
    parser.add_argument(
        "--resume",
        default=True,
        action=ActionYesNo(no_prefix="no_"),
        help="--no-resume refuses an OUT that exists",
    )
    parser.add_argument("--json", action="store_true", help="print the counts as one JSON line")
    arguments = parser.parse_args(underscored(argv))
    configure_logging()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    values = arguments.as_dict()
    as_json, resume = values.pop("json"), values.pop("resume")
    prompts, out = Path(values.pop("prompts")), Path(values.pop("out"))
    config = CollectConfig(prompts=prompts, out=out, **values)
    if not resume and config.out.exists():
        raise ConfigError(f"{config.out} exists; choose another --out, or leave out --no-resume")
    result = collect(config, api_key=os.environ.get("OPENAI_API_KEY"))
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        _print(result)
    return 1 if result["unanswered"] else 0


def collect(config: CollectConfig, *, api_key: str | None = None) -> dict[str, Any]:
    """Ask for every response that OUT lacks; returns the counts that `--json` prints.

    Raises:
        ConfigError: a setting, the endpoint or a folder is wrong, or OUT was made otherwise.
        DataError: the prompts break their schema, or the endpoint does not count tokens.
        ServiceUnavailable: the endpoint went down; what was collected is kept.
    """
    if importlib.util.find_spec("httpx") is None:
        raise ConfigError("collect needs httpx; install it: pip install 'lengthwise[collect]'")
    from training.collection.endpoint import normalise_url

    normalise_url(config.endpoint)
    prompts, num_repeated = read_prompts(config.prompts, config.prompt_column)
    refuse_foreign_card(config.out)
    with AnswerLog(config.out) as log:
        done = _done(log, config)
        wanted = [Job(prompt=p, sample=n) for n in range(config.samples) for p in prompts]
        jobs = [job for job in wanted if (prompt_hash(job.prompt), job.sample) not in done]
        num_kept = len(log.rows)
        logger.info("%d responses wanted, %d of them missing", len(wanted), len(jobs))
        try:
            refused, num_retries = asyncio.run(_ask_all(config, jobs, log, api_key))
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
        **_totals(log.rows),
        "out": str(config.out),
        "card": str(card_path(config.out)),
    }


def _totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Over all rows of OUT."""
    return {
        "rows": len(rows),
        "cut": sum(row["finish_reason"] == "length" for row in rows),
        "output_tokens": sum(row["output_tokens"] for row in rows),
        "reasoning_tokens": sum(row["reasoning_tokens"] for row in rows),
    }


def read_prompts(path: Path, column: str) -> tuple[list[str], int]:
    """The distinct prompts of a table in its order, and how many rows repeated one of them.

    Raises:
        DataError: no such table or column, or a prompt is empty or not text.
    """
    frame = read_table(path)
    require_columns(frame, [column], path)
    distinct: dict[str, str] = {}
    for prompt in prompts_of(frame[column], path):
        distinct.setdefault(prompt_hash(prompt), prompt)
    return list(distinct.values()), len(frame) - len(distinct)


async def _ask_all(
    config: CollectConfig, jobs: Sequence[Job], log: AnswerLog, api_key: str | None
) -> tuple[list[str], int]:
    """Returns why prompts were refused, one reason each, and how many requests were repeated."""
    import httpx
    from tqdm import tqdm

    from training.collection.endpoint import Endpoint

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(
        max_connections=config.concurrency, max_keepalive_connections=config.concurrency
    )
    refused: list[str] = []
    queue = iter(jobs)
    is_hidden = not sys.stderr.isatty()
    async with httpx.AsyncClient(
        headers=headers, limits=limits, timeout=config.timeout_s, follow_redirects=True
    ) as client:
        endpoint = Endpoint(
            client,
            config.endpoint,
            config.settings,
            api=config.api,
            max_attempts=config.max_attempts,
        )
        with tqdm(total=len(jobs), unit="prompt", disable=is_hidden, smoothing=0.05) as progress:
            workers = [
                _work(queue, endpoint, config, log, refused, progress)
                for _ in range(min(config.concurrency, len(jobs)))
            ]
            await _together(workers)
    return refused, endpoint.num_retries


async def _work(
    queue: Iterator[Job],
    endpoint: Endpoint,
    config: CollectConfig,
    log: AnswerLog,
    refused: list[str],
    progress: Any,
) -> None:
    """Take jobs off the queue until it is empty."""
    from training.collection.endpoint import PromptRefused

    for job in queue:
        try:
            length = await endpoint.ask(job.prompt)
        except PromptRefused as error:
            refused.append(str(error))
        else:
            answer = asdict(length) | {"answer_tokens": length.answer_tokens}
            log.append({**asdict(job), "model": config.model, **answer, **_request(config)})
        progress.update()


async def _together(workers: Sequence[Any]) -> None:
    """Run them all; the first error cancels the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _request(config: CollectConfig) -> dict[str, str]:
    """How a row was asked for, in one column: rows of one file must agree in it."""
    return {"request": json.dumps({"api": config.api, **config.settings}, sort_keys=True)}


def _done(log: AnswerLog, config: CollectConfig) -> set[tuple[str, int]]:
    """The responses that are there already.

    Raises:
        ConfigError: they were asked for otherwise, so the lengths would not be comparable.
        DataError: a row is not one of ours.
    """
    mine = _request(config)["request"]
    done = set()
    for number, row in enumerate(log.rows):
        try:
            key = prompt_hash(row["prompt"]), int(row["sample"])
            theirs = row["request"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                "not a row that collect wrote; choose another --out", path=log.path, row=number
            ) from error
        if theirs != mine:
            raise ConfigError(
                f"{log.path} was collected with {theirs}, not with {mine}; choose another --out"
            )
        done.add(key)
    return done


def _describe(config: CollectConfig, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the card of OUT as it is now."""
    columns = ["prompt", "output_tokens", "model", "sample"]
    if any(row["reasoning_tokens"] for row in rows):
        columns += ["reasoning_tokens", "answer_tokens"]
    write_card(
        config.out,
        columns=columns,
        rows=len(rows),
        source=f"collected from {urlsplit(config.endpoint).hostname}",
        tokenizer=f"{config.model} (usage.completion_tokens)",
        notes=f"request: {_request(config)['request']}",
    )


def _print(result: Mapping[str, Any]) -> None:
    print(f"prompts           {result['prompts']} ({result['repeated_prompts']} repeats left out)")
    print(f"responses         {result['rows']}, {result['new_rows']} of them new")
    print(f"output tokens     {result['output_tokens']}")
    print(f"  of them reason  {result['reasoning_tokens']}")
    print(f"cut               {result['cut']} (longer than allowed: true length unknown)")
    print(f"asked again       {result['retries']} times")
    if result["unanswered"]:
        print(f"without answer    {result['unanswered']}, e.g. {result['first_refusal']}")
    print(f"data card         {result['card']}")
