"""Requests of a log, and scores of their prompts outside the training set."""

import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lengthwise.bundle import read_manifest
from lengthwise.errors import ConfigError, DataError
from lengthwise.strict_json import to_json
from lengthwise.tables.columns import Log
from lengthwise.tables.files import write_whole
from lengthwise.tables.options import TraceOptions
from lengthwise.tables.prompt_text import normalised
from lengthwise.tables.reading import read_table
from scheduler_adapters.workload.requests import Requests
from scheduler_adapters.workload.score_sources import PromptScores, open_prompt_scorer
from scheduler_adapters.workload.traces import read_trace

log = logging.getLogger(__name__)

LEAST_REQUESTS: Final = 20
_CHARACTERS_PER_TOKEN: Final = 4
"""Of prompts whose tokens the log does not count."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """Requests of a log in order of arrival, and the scores of a ranker."""

    requests: Requests
    """The first arrives at 0 s; the score is NaN without a ranker, and for its training set."""
    prompts: NDArray[Any]
    """(N,), empty where they are not needed."""
    models: tuple[str, ...]
    """Models that the log names."""
    num_prompts: int = 0
    """Distinct prompts with a score; 0 for an assumed ranker."""
    ranker: str = ""
    """Source of the scores, for a caption."""
    bundle: Path | None = None


class _Keeper:
    """Scorer that keeps the prompts; the score of each is its place among them."""

    prompts: Sequence[str] = ()

    def score_prompts(self, prompts: Sequence[str]) -> PromptScores:
        self.prompts = prompts
        tokens = [max(1, len(prompt) // _CHARACTERS_PER_TOKEN) for prompt in prompts]
        places = np.arange(len(prompts), dtype=float)
        return PromptScores(values=places, prompt_tokens=np.array(tokens, float))


def read_requests(names: Sequence[str], options: TraceOptions, *, needs_prompts: bool) -> Evidence:
    """Return the requests of a log, their prompts, and the models that it names."""
    keeper, models = _Keeper(), set[str]()

    def note(log: Log) -> None:
        models.update(log.frame.get("model", ()))

    requests = read_trace(names, options, scorer=keeper if needs_prompts else None, seen=note)
    if (count := len(requests)) < LEAST_REQUESTS:
        said = f"only {count} answered requests; a replay needs {LEAST_REQUESTS} or more"
        raise DataError(said, path=names[0])
    prompts = np.full(count, "", dtype=object)
    if needs_prompts:
        prompts = np.array(keeper.prompts, dtype=object)[requests.score.astype(int)]
    arrival_s = requests.arrival_s - requests.arrival_s[0]
    return Evidence(
        requests=replace(requests.with_scores(np.nan), arrival_s=arrival_s),
        prompts=prompts,
        models=tuple(sorted(models - {""})),
    )


def own_ranker(found: Evidence, out: Path, recipe: str, options: Mapping[str, Any]) -> Path:
    """Return the bundle of a ranker of a log's prompts and lengths.

    That in `out` is used if it learnt the same rows by the same options. Else one is trained.
    """
    lengths = found.requests.output_tokens
    table = pd.DataFrame({"prompt": found.prompts, "output_tokens": lengths})
    table = table[table["prompt"].str.strip() != ""]
    rows = pd.util.hash_pandas_object(table, index=False).to_numpy()
    given = {"recipe": recipe, **options, "rows": sha256(rows.tobytes()).hexdigest()}
    bundle, learnt = out / "ranker" / "bundle", out / "ranker" / "learnt.json"
    if bundle.is_dir() and learnt.is_file():
        if learnt.read_text() == to_json(given):
            log.info("the ranker in %s learnt these rows by these options: it is used", bundle)
            return bundle
        log.info("the ranker in %s learnt other rows, or by other options: a new one", bundle)
        learnt.unlink()
    data = write_whole(out / "prompts.parquet", table.to_parquet, make_folder=True)
    _train(data, out, recipe, options)
    write_whole(learnt, lambda part: part.write_text(to_json(given)))
    return bundle


def _train(data: Path, out: Path, recipe: str, options: Mapping[str, Any]) -> None:
    """Train a ranker in a process of its own, whose MLflow store is dropped unless one is given."""
    with TemporaryDirectory(dir=out, prefix=".mlruns-") as store:
        given = {"out": out / "ranker", "data.dataset": data, "mlruns-dir": store, **options}
        # A process, as training may not be imported here; -P: not from a local folder of that name.
        command = [sys.executable, "-P", "-m", "training", "fit", recipe]
        command += [word for name, value in given.items() for word in (f"--{name}", str(value))]
        log.info("training a ranker: %s", " ".join(command[2:]))
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise ConfigError(
            f"training ended with exit code {done.returncode}, its error is above; see to "
            "--training, or give --bundle or --tau-b in its place"
        )


def with_scores(found: Evidence, bundle: Path) -> Evidence:
    """Score the prompts outside a ranker's training set, which test.parquet of its run holds.

    All prompts are scored without that file, or if none of its prompts is in the log.
    """
    manifest, prompts = read_manifest(bundle), found.prompts
    keys = [normalised(prompt) for prompt in prompts]
    held_out, unseen = bundle.parent / "test.parquet", set(keys)
    if held_out.exists():
        kept = set(map(normalised, read_table(held_out, ["prompt"])["prompt"].astype(str)))
        unseen = kept & unseen or unseen
    rows = np.array([bool(key) and key in unseen for key in keys])
    if not rows.any():
        raise DataError("no request has a prompt to score; name the column by --prompt-column")
    texts, place = np.unique(prompts[rows].astype(str), return_inverse=True)
    log.info("scoring %d prompts", len(texts))
    scores = np.full(len(keys), np.nan)
    scores[rows] = open_prompt_scorer(f"bundle:{bundle}").score_prompts(list(texts)).values[place]
    return replace(
        found,
        requests=found.requests.with_scores(scores),
        num_prompts=len(texts),
        ranker=f"the ranker {manifest.name}, on {len(texts):,} prompts that it has not seen, of "
        f"{int(np.isfinite(scores).sum()):,} requests",
        bundle=bundle,
    )
