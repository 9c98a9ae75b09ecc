"""Speed and memory of `read_log` on one core: python tests/peers/log_speed.py [--rows 1000000].

Each cell runs in a process of its own, whose peak memory is that of the cell.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon"] * 6
FIELDS = ("prompt_tokens", "output_tokens", "arrival_s")


def write(path: Path, rows: int) -> None:
    """Write a log of requests with prompts of 30 words."""
    prompts = [f"{n} {' '.join(WORDS)}" for n in range(rows)]
    if path.suffix == ".jsonl":
        with path.open("w") as stream:
            for n, prompt in enumerate(prompts):
                out = n % 500 + 1
                usage = {"prompt_tokens": 40, "completion_tokens": out, "total_tokens": 40 + out}
                choices = [{"index": 0, "finish_reason": "stop"}]
                body = {"id": f"chatcmpl-{n}", "choices": choices, "usage": usage}
                request = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
                row = {"timestamp": 1.7e9 + n / 10, "request": request, "response": body}
                stream.write(json.dumps(row) + "\n")
        return
    numbers = range(rows)
    columns = [prompts, [40] * rows, [n % 500 + 1 for n in numbers], [n / 10 for n in numbers]]
    table = pa.table(dict(zip(("prompt", *FIELDS), columns, strict=True)))
    {".csv": pyarrow.csv.write_csv, ".parquet": pq.write_table}[path.suffix](table, path)


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


def main() -> None:
    """Write each log, and measure it with and without prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--of", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.of:
        measure(Path(given.of[0]), tuple(given.of[1:]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("csv", "parquet", "jsonl"):
            path = Path(folder) / f"log.{suffix}"
            subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path; from log_speed import write; write(Path({str(path)!r}), {given.rows})
""",
                ],
                check=True,
            )
            for needs in (("prompt", *FIELDS), FIELDS):
                subprocess.run([sys.executable, __file__, "--of", path, *needs], check=True)
            path.unlink()


if __name__ == "__main__":
    main()
