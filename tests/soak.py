"""All attacks of `tests/scoring_service/attacks.py` at once, beside honest callers and new bundles.

    make soak                              ten minutes
    python tests/soak.py --seconds 30

Exit status 1: an honest call was lost, health was not answered, or memory grew by more than
`MAX_GROWTH` after the first tenth. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scoring_service.bench.processes import rss_bytes  # noqa: E402
from tests.conftest import write_tiny_bundle  # noqa: E402
from tests.scoring_service.attacks import ATTACKS, Honest, honest_callers  # noqa: E402

MAX_GROWTH = 0.1
"""Of the resident memory, which fluctuates with the size of the prompts under way."""
_SWAP_S = 5.0
_ATTACK_S = 3.0


def soak(seconds: float, *, timeout_s: float = 10.0, seed: int = 0) -> dict[str, object]:
    """Run a service of its own under attack for so long; returns what honest callers met."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_tiny_bundle(Path(scratch) / "bundle").path
        command = [sys.executable, "-m", "scoring_service", "serve", "--bundle", str(folder)]
        command += ["--address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]
        command += ["--reflection", "true", "--reload-poll-s", "0.5", "--drain-grace-s", "2"]
        command += ["--report-log", str(Path(scratch) / "log.jsonl")]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
        assert process.stdout is not None
        try:
            target = process.stdout.readline().split()[-1]
            with honest_callers(target, timeout_s=timeout_s) as honest:
                sizes = _attack(process.pid, target, folder, seconds, seed)
            process.send_signal(signal.SIGTERM)
            begun_s = time.monotonic()
            process.wait(60)
            end_s = time.monotonic() - begun_s
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    return _summary(honest, sizes, process.returncode, end_s)


def _attack(pid: int, target: str, folder: Path, seconds: float, seed: int) -> list[int]:
    """Two attacks at a time, each another one every few seconds; returns sizes in memory, bytes."""
    stopped, sizes = threading.Event(), list[int]()

    def mix(number: int) -> None:
        dice = random.Random(f"{seed} {number}")
        while not stopped.is_set():
            ATTACKS[dice.choice(list(ATTACKS))](target, _ATTACK_S)

    def swap() -> None:
        shift = 0.0
        while not stopped.wait(_SWAP_S):
            shift += 1.0
            write_tiny_bundle(folder, shift=shift)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(mix, 0), pool.submit(mix, 1), pool.submit(swap)]
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not any(one.done() for one in running):
            sizes.append(rss_bytes(pid))
            time.sleep(0.5)
        stopped.set()
        for one in running:
            one.result(300)
    return sizes


def _summary(honest: Honest, sizes: list[int], status: int, end_s: float) -> dict[str, object]:
    warm = sizes[len(sizes) // 10 :]
    half = len(warm) // 2
    first, last = (max(part, default=0) for part in (warm[:half], warm[half:]))
    return {
        "scored": honest.scored,
        "failed": honest.failed,
        "errors": honest.errors[:5],
        "slowest_health_s": round(honest.slowest_health_s, 3),
        "peak_mb": round(max(sizes) / 1e6, 1),
        "growth": round(last / first - 1, 3) if first else 0.0,
        "end_s": round(end_s, 2),
        "exit_status": status,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=600.0)
    found = soak(parser.parse_args().seconds)
    print(json.dumps(found))
    return int(bool(found["failed"] or found["exit_status"] or found["growth"] > MAX_GROWTH))  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
