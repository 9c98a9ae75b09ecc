"""`score-batch`: scores of a file of prompts by a bundle, on the machines of a Ray cluster."""

import json
import logging
from collections.abc import Iterator
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from lengthwise.bundle import ModelBundle
from lengthwise.command_line.options import POSITIONAL, common_options
from lengthwise.errors import ConfigError
from lengthwise.progress import Progress
from lengthwise.settings import Count, settings
from lengthwise.tables.files import digest_of, write_whole
from lengthwise.tables.options import ReadingOptions
from lengthwise.tables.reading import read_log

log = logging.getLogger(__name__)


@settings
class BatchOptions(ReadingOptions):
    """Prompts, their ranker, and the place of the scores."""

    prompts: tuple[str, ...] = field(metadata=POSITIONAL)
    """Files, folders or patterns with prompts: a table with a column prompt, or a log."""
    bundle: Path
    """Ranker; on a cluster its folder must be at this path on each machine."""
    out: Path
    """Folder for the parts: scores-00000.parquet and so on, with columns row and score."""
    part_rows: Count = 10_000
    """Prompts of a part. A part is written whole, or not at all."""
    workers: Count = 1
    """Processes that score, each on one CPU with a ranker of its own."""
    address: str | None = None
    """HOST:PORT of a running Ray cluster; none: this machine alone."""


@common_options("prompts", "bundle", "out", "part_rows", "workers", "address", "prompt_column")
def score_batch(options: BatchOptions) -> None:
    """Score the prompts of files with Ray Data; scores equal those of the service.

    The command may be ended and repeated: parts that are there are not scored again. Only the first
    machine reads the prompts and writes the parts. An empty prompt has no score.

    Example:
      lengthwise score-batch prompts.parquet --bundle run/bundle --out scores --workers 8
    """
    frame = read_log(options.prompts, options, needs=["prompt"]).frame
    _require_same_run(options, ModelBundle.load(options.bundle).manifest.revision)
    num_parts = -(-len(frame) // options.part_rows)
    places = {n: options.out / f"scores-{n:05d}.parquet" for n in range(num_parts)}
    missing = {n: place for n, place in places.items() if not place.exists()}
    log.info("%d of %d parts are there", len(places) - len(missing), len(places))
    size, texts = options.part_rows, frame["prompt"].tolist()
    parts = [{"part": n, "prompts": texts[n * size : (n + 1) * size]} for n in missing]
    with Progress(len(parts)) as progress:
        for found in _scored(options, parts) if parts else ():
            number = int(found["part"])
            rows = frame.index[number * size : (number + 1) * size]
            table = pd.DataFrame({"row": rows, "score": found["scores"]})
            write_whole(missing[number], partial(table.to_parquet, index=False))
            progress.step(f"part {number}")
    print(f"{len(frame)} prompts, {len(places)} parts, {len(parts)} of them new: {options.out}")


def _require_same_run(options: BatchOptions, revision: str) -> None:
    """Raise ConfigError if the folder has parts of other prompts, or of another ranker."""
    place, prompts = options.out / "batch.json", digest_of(options.prompts)
    ours = {"revision": revision, "prompts": prompts, "part_rows": options.part_rows}
    if not place.exists():
        write_whole(place, lambda part: part.write_text(json.dumps(ours)), make_folder=True)
    elif other := [
        name for name, value in json.loads(place.read_text()).items() if value != ours[name]
    ]:
        raise ConfigError(
            f"out is {options.out}, with parts of another {other[0]}; use another folder"
        )


def _scored(options: BatchOptions, parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the scores of each part as soon as a worker has them."""
    import ray

    ray.init(address=options.address or "local", include_dashboard=False, log_to_driver=False)
    try:
        data = ray.data.from_items(parts, override_num_blocks=len(parts))
        workers = ray.data.ActorPoolStrategy(size=options.workers)
        bundle = str(options.bundle.resolve())
        made = data.map(_Ranker, fn_constructor_args=(bundle,), compute=workers, num_cpus=1)
        yield from made.iter_rows()
    finally:
        ray.shutdown()


class _Ranker:
    """A ranker in a worker."""

    def __init__(self, bundle: str) -> None:
        from scoring_service.ranker.model import RankerModel

        self.model = RankerModel.load(ModelBundle.load(bundle))

    def __call__(self, part: dict[str, Any]) -> dict[str, Any]:
        prompts = [str(text) for text in part["prompts"]]
        scores = iter(self.model.score_texts([text for text in prompts if text]))
        found = [next(scores) if text else None for text in prompts]
        return {"part": part["part"], "scores": found}
