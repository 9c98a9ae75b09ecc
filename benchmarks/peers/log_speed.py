"""Speed and memory of `read_log` on one core: python -m benchmarks log-speed [ROWS].

Each cell is read in a process of its own, whose peak memory is that of the cell.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

FIELDS = ("prompt_tokens", "output_tokens", "arrival_s")


def write(path: Path, rows: int) -> None:
    """Write a log of requests with prompts of 30 words."""
    prompts = [f"{n} {'alpha beta gamma delta epsilon ' * 6}" for n in range(rows)]
    outputs = [n % 500 + 1 for n in range(rows)]
    if path.suffix != ".jsonl":
        columns = [prompts, [40] * rows, outputs, [n / 10 for n in range(rows)]]
        table = pa.table(dict(zip(("prompt", *FIELDS), columns, strict=True)))
        {".csv": pyarrow.csv.write_csv, ".parquet": pq.write_table}[path.suffix](table, path)
        return
    with path.open("w") as stream:
        for n, (prompt, out) in enumerate(zip(prompts, outputs, strict=True)):
            usage = {"prompt_tokens": 40, "completion_tokens": out, "total_tokens": 40 + out}
            body = {"id": f"chatcmpl-{n}", "choices": [{"finish_reason": "stop"}], "usage": usage}
            request = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
            row = {"timestamp": 1.7e9 + n / 10, "request": request, "response": body}
            stream.write(json.dumps(row) + "\n")


def measure(path: Path, needs: tuple[str, ...]) -> None:
    """Print rows per second, and MiB of memory before and at the peak."""
    import pandas  # noqa: F401

    from lengthwise.tables.reading import read_log

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.process_time()
    rows = len(read_log(path, needs=needs).frame)
    speed = rows / (time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{path.suffix[1:]:8} {needs[0]:14} {speed:9,.0f} rows/s, {before:.0f} to {peak:.0f} MiB")


def apart(function: Callable[..., Any], *values: Any) -> None:
    """Call a function in a process of its own."""
    process = get_context("spawn").Process(target=function, args=values)
    process.start()
    process.join()


if __name__ == "__main__":
    num_rows = int((*sys.argv[1:], 1_000_000)[0])
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("csv", "parquet", "jsonl"):
            log = Path(folder) / f"log.{suffix}"
            apart(write, log, num_rows)
            apart(measure, log, ("prompt", *FIELDS))
            apart(measure, log, FIELDS)
