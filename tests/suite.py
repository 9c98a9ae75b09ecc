"""The whole test suite, several processes at a time: what `make test` runs after `make lint`.

    python tests/suite.py --jobs 6          all tests that need no data folder
    python tests/suite.py --only fast       those of `make check`
    python tests/suite.py --only data       those of `make test-data`
    python tests/suite.py --only ray        Ray nodes with faults, vLLM on Ray; first and alone

Tests of the real vLLM get a process per file, as a second engine in one process breaks the groups
of the first. They are forked from this process once it has imported vLLM, which takes longer than
most of these files. What a process printed is shown when it ends. Exit status 1: one failed.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LARGE = ("scheduler_adapters", "training")
"""Folders whose slow tests have a process of their own."""
_SLOW = ("-m", "slow and not data and not vllm")
_RAY = ("-m", "ray", "-o", "faulthandler_timeout=420")  # longer than any wait in these tests
_FIRST = "tests/scheduler_adapters"
_ROUTERS, _ON_RAY = f"{_FIRST}/routers", f"{_FIRST}/routers/ray/vllm_replicas"
GROUPS = {
    # Each alone.
    "ray": {
        "vLLM on Ray": (*_RAY, _ON_RAY),
        "tests of Ray": (*_RAY, f"--ignore={_ON_RAY}", _ROUTERS, "tests/scoring_service/commands"),
    },
    # First, as they take longest.
    "slow": {
        **{f"slow tests of {room}": (*_SLOW, f"tests/{room}") for room in LARGE},
        "other slow tests": (*_SLOW, *(f"--ignore=tests/{room}" for room in LARGE)),
    },
    "fast": {
        "fast tests of scheduler_adapters": (_FIRST,),
        "other fast tests": (f"--ignore={_FIRST}",),
    },
    "data": {"tests of measured data": ("-m", "data")},
}


class Processes:
    """Runs of pytest, at most `jobs` at a time, each with its output in a file."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.failed: list[str] = []
        self._running: dict[int, tuple[str, float, IO[bytes]]] = {}

    def start(self, name: str, arguments: tuple[str, ...], *, forked: bool) -> None:
        """Run pytest once there is a place, with what this process has imported or without."""
        while len(self._running) >= self.jobs:
            self.wait()
        output = tempfile.TemporaryFile()  # noqa: SIM115
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(output.fileno(), stream.fileno())
            if not forked:
                os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", *arguments])
            run_pytest_and_exit(arguments)
        self._running[pid] = (name, time.monotonic(), output)

    def wait(self) -> None:
        """Wait until one run has ended, and show what it printed."""
        pid, status = os.wait()
        name, began_s, output = self._running.pop(pid)
        print(f"== {name}: {time.monotonic() - began_s:.0f} s", flush=True)
        with output:
            output.seek(0)
            sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
        if status:
            self.failed.append(name)

    def wait_for_all(self) -> None:
        """Wait until all runs have ended."""
        while self._running:
            self.wait()


def run_pytest_and_exit(arguments: tuple[str, ...]) -> NoReturn:
    """Run pytest in this process and end it, without the tear-down of all that was imported."""
    # pytest warns that it cannot explain asserts in plugins' modules that vLLM has imported.
    known = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    status = 1
    try:
        status = pytest.main(["-q", *known, *arguments])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def import_vllm() -> None:
    """Import what an engine on the CPU needs; the environment stays as it was, for the tests."""
    from scheduler_adapters.engines.vllm_v1.in_process import set_environment

    before = dict(os.environ)
    set_environment()
    from vllm import LLMEngine  # noqa: F401
    from vllm.v1.worker import cpu_worker  # noqa: F401

    os.environ.clear()
    os.environ.update(before)
    # So that a collection of garbage does not touch, and thereby copy, what forked processes share.
    gc.collect()
    gc.freeze()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--jobs", type=int, default=6, help="processes at a time (6)")
    parser.add_argument("--only", choices=[*GROUPS, "vllm"], help="one group (all but data)")
    settings = parser.parse_args()
    processes = Processes(settings.jobs)
    os.chdir(ROOT)
    for group in [settings.only] if settings.only else ["ray", "slow", "fast"]:
        for name, arguments in GROUPS.get(group, {}).items():
            processes.start(name, arguments, forked=False)
            if group == "ray":  # alone: its nodes and proxies have limits of their own for a start
                processes.wait_for_all()
    if settings.only in (None, "vllm"):
        start_vllm_tests(processes)
    processes.wait_for_all()
    gc.unfreeze()
    print("failed: " + ", ".join(processes.failed) if processes.failed else "all passed")
    return int(bool(processes.failed))


def start_vllm_tests(processes: Processes) -> None:
    """Run the files of vLLM's tests, a process each, the largest first: they take longest."""
    files = [file for file in Path("tests").rglob("test_*.py") if "mark.vllm" in file.read_text()]
    if find_spec("vllm") is None:
        print(f"vLLM is not installed: the tests of {len(files)} files are left out", flush=True)
        return
    import_vllm()
    for file in sorted(files, key=lambda file: file.stat().st_size, reverse=True):
        processes.start(str(file), ("-m", "vllm and not data and not slow", str(file)), forked=True)


if __name__ == "__main__":
    sys.exit(main())
