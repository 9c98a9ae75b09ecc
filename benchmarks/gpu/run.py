"""All measurements of a GPU machine that is lent for minutes, the most useful first.

    python -m benchmarks gpu .gpu/requests.csv --out OUT --limit-s 560
    python -m benchmarks gpu .gpu/chats.csv --model FOLDER --out OUT    a chat model, natural ends

Each part is a process with its own time limit. A part that fails is one line of the figures, and
the next one starts. SIGTERM or the limit ends the present part and leaves the others out. In OUT at
any moment: figures.jsonl, table.md, log.txt (what the parts print), steps.csv (each step of the
bursts). With torch 2.11 use vLLM 0.26.0.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from threading import Timer
from typing import Any, Final

from lengthwise.strict_json import parsed, to_json

QUIET: Final = {"enable_flashinfer_autotune": False, "enable_cutedsl_warmup": False}
"""For an installation without FlashInfer."""
GRAPHS: Final = {
    "enforce_eager": False,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}
_GRACE_S: Final = 8.0
"""Seconds from SIGTERM to SIGKILL of a part."""
_LEAST_S: Final = 20.0
"""Seconds below which no part starts."""
_COLUMNS: Final = ("whole_s", "s_per_token", "s_per_token_p90", "e2e_s", "ttft_s", "mean_batch")


def parts(options: argparse.Namespace) -> dict[str, tuple[float, list[str]]]:
    """Return the measurements in their order: name -> seconds at most, arguments of Python."""
    shape, count = ["--shape", options.shape], str(options.count)
    engine = ["--engine", json.dumps({"kernel_config": QUIET, **GRAPHS})]
    bursts = ["-m", "benchmarks.gpu.burst", "serve", str(options.requests), "--count", count]
    bursts += ["--steps", str(options.out / "steps.csv"), "--seeds", str(options.seeds)]
    if options.model is not None:
        bursts += ["--model", str(options.model), "--max-num-seqs", "64", "256"]
    memory = ["--kv-cache-mib", "40960" if options.shape == "7b" else "256"]
    speed = ["-m", "benchmarks", "engine-step", "--json", *shape, *memory, *engine]
    price = ["-m", "benchmarks.peers.server_price", "--starts", "1", "--pairs", "8", *shape]
    price += ["--bundle", str(options.bundle), "--", "--max-num-seqs=64"]
    price += [f"--kv-cache-memory-bytes={20 << 30}", f"--kernel-config={json.dumps(QUIET)}"]
    file = "tests/scheduler_adapters/engines/vllm_v1/test_gpu.py"
    tests = ["-m", "pytest", "-q", "-m", "gpu", "-k", "answers", "--noconftest", file]
    return {
        "tokens": (130, tests),
        "bursts": (420, [*bursts, *shape, *memory, *engine]),
        **{
            f"engine-{policy}": (120, [*speed, "--throughput-rounds=3", "--policy", policy])
            for policy in ("pars", "slai", "fcfs", "pascal")
        },
        "price": (200, price),
    }


class Session:
    """The folder of the figures and the end of the lent time."""

    def __init__(self, out: Path, limit_s: float) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.until_s = out, time.monotonic() + limit_s
        self.figures: list[dict[str, Any]] = []

    def add(self, part: str, figure: Mapping[str, Any]) -> None:
        """Keep a figure of a part, and write the table anew."""
        self.figures.append({"part": part, **figure})
        line = to_json(self.figures[-1])
        with (self.out / "figures.jsonl").open("a") as file:
            print(line, file=file)
        (self.out / "table.md").write_text(table_of(self.figures))
        print(line[:240], flush=True)

    def run(self, name: str, most_s: float, command: Sequence[str]) -> None:
        """Run a part in the time left; the JSON objects that it prints are its figures."""
        began_s, last = time.monotonic(), ""
        limit_s = min(most_s, self.until_s - began_s - _GRACE_S)
        if limit_s < _LEAST_S:
            return
        quiet = json.dumps({"kernel_config": QUIET})
        child = subprocess.Popen(
            [sys.executable, *command],
            env={"GPU_TESTS_ENGINE": quiet, **os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert child.stdout is not None
        timer = Timer(limit_s, stop, [child])
        timer.start()
        try:
            with (self.out / "log.txt").open("a") as log:
                print(f"\n=== {name}: {limit_s:.0f} s at most", file=log, flush=True)
                for line in child.stdout:
                    print(line, end="", file=log, flush=True)
                    if not line.startswith("{"):
                        last = line.strip() or last
                    else:
                        with suppress(ValueError):
                            self.add(name, parsed(line))
        finally:
            timer.cancel()
            stop(child)
            child.stdout.close()
            ended = {"exit": child.returncode, "seconds": time.monotonic() - began_s}
            self.add(name, ended | {"last_line": last[:200]})


def stop(child: "subprocess.Popen[str]") -> None:
    """End a process and all that it has started."""
    with suppress(ProcessLookupError):
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)


def table_of(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return in Markdown: the ends of the parts, the bursts and their means, other figures."""
    ends = ("part", "exit", "seconds", "last_line")
    rows: list[Sequence[Any]] = [ends, ["---"] * len(ends)]
    rows += [[one[name] for name in ends] for one in figures if "exit" in one]
    bursts = [
        (f"{one['order']}, {one['seats']} seats", one["seed"], [one[name] for name in _COLUMNS])
        for one in figures
        if "order" in one
    ]
    if bursts:
        rows += [(), heads := ("order", "seed", *_COLUMNS), ["---"] * len(heads)]
        rows += [(order, seed, *columns) for order, seed, columns in bursts]
    for name in dict.fromkeys(order for order, *_ in bursts):
        of = (columns for order, _, columns in bursts if order == name)
        rows.append((name, "mean", *map(fmean, zip(*of, strict=True))))
    others = [one for one in figures if "exit" not in one and "order" not in one]
    rows += [(), *([f"{name} {value}" for name, value in one.items()] for one in others)]
    lines = [f"| {' | '.join(map(_text, row))} |" if row else "" for row in rows]
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("requests", type=Path, help="made by `burst prepare`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, help="ranker for the part price")
    parser.add_argument("--limit-s", type=float, default=660.0)
    parser.add_argument("--parts", nargs="*", default=(), help="first letters; left out: all")
    parser.add_argument("--shape", default="7b", help="of the random Llama")
    parser.add_argument("--model", type=Path, help="folder of a chat model, for the bursts")
    parser.add_argument("--count", type=int, default=1000, help="requests of a burst")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    session = Session(options.out, options.limit_s)
    try:
        for name, (most_s, command) in parts(options).items():
            if name.startswith(tuple(options.parts or ("",))):
                session.run(name, most_s, command)
    except KeyboardInterrupt:
        print("stopped; what was measured is kept")
    print(table_of(session.figures))


if __name__ == "__main__":
    main()
