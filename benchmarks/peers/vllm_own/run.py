"""vLLM's own scheduler and KV tests, with our schedulers in place of vLLM's.

    python -m benchmarks vllm-own --policy pars --json

The tests come from vLLM's source distribution: from --sdist, else through pip, whatever index it is
set up with. They and the outcomes of the stock schedulers stay in mlruns/vllm_own. A test that
stock passes, and ours do not, needs a reason in differences.md, or this exits with 1. Models are
never downloaded. The tests get the configuration of an OPT of default size; tests that need more
fail under stock too, and do not count.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FOLDER = ROOT / "mlruns/vllm_own"
SDIST = "vllm-0.32.0.tar.gz"
SHA256 = "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"
ROOMS = ("tests/v1/core", "tests/v1/kv_connector/unit")
MAKES_A_SCHEDULER = re.compile(
    r"create_scheduler|request_runner|\b(Async)?Scheduler\(|__new__\(Scheduler"
)
MANY = 10**6
SETTINGS: dict[str, dict[str, Any]] = {
    "stock": {},
    "fcfs": {},
    "pars": {},
    "sarathi": {"max_tokens": MANY, "max_resident": MANY},
    "round-robin": {"quantum_tokens": MANY},
    "slai": {"order": "fcfs", "max_tokens": MANY, "max_resident": MANY, "max_decodes": MANY},
    "pascal": {"think_end": [MANY]},
    "rad": {"max_started": MANY, "tile": MANY, "chunk": MANY},
}
"""Schedulers with their own limits lifted, and new requests in the order in which they came."""


def fetch_sdist(target: Path) -> None:
    """Download vLLM's source distribution as pip would; pip itself would also try to build it."""
    from pip._internal.commands import create_command

    command: Any = create_command("download")
    with command.main_context():
        options, _ = command.parse_args(["vllm"])
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        links = [found.link for found in finder.find_all_candidates("vllm")]
        link = next((link for link in links if link.filename == SDIST), None)
        if link is None:
            sys.exit(f"pip's index has no {SDIST}; give it with --sdist")
        target.write_bytes(session.get(link.url_without_fragment).content)


def unpack(sdist: Path, folder: Path) -> None:
    """Lay the tests into `folder`, without the fixtures for machines with GPUs and a network."""
    if hashlib.sha256(sdist.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"{sdist} is not the {SDIST} that was tried; delete it, or give another --sdist")
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            member.name = member.name.partition("/")[2]
            if member.name.startswith("tests/") and member.name != "tests/conftest.py":
                archive.extract(member, folder, filter="data")
    (folder / "pytest.ini").write_text("[pytest]\n")


def write_model_config(hub: Path) -> None:
    """Make a cache of the model hub with the configuration of the model that most tests name."""
    from transformers import OPTConfig

    config = OPTConfig(architectures=["OPTForCausalLM"], dtype="float16").to_json_string()
    for name in ("opt-125m", "opt-350m"):
        model = hub / f"models--facebook--{name}"
        (model / "snapshots/0").mkdir(parents=True, exist_ok=True)
        (model / "snapshots/0/config.json").write_text(config)
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs/main").write_text("0")


def run_tests(policy: str, folder: Path) -> dict[str, str]:
    """Run the tests under one policy; test -> "passed", "skipped" or "failed: why"."""
    files = [
        str(path.relative_to(folder))
        for room in ROOMS
        for path in sorted((folder / room).rglob("test_*.py"))
        if MAKES_A_SCHEDULER.search(path.read_text())
    ]
    settings = {} if policy == "stock" else {"policy": policy, **SETTINGS[policy]}
    out = folder / f"{policy}.json"
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
        "HF_HOME": str(folder / "models"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "LENGTHWISE_VLLM_OWN": json.dumps(settings),
        "LENGTHWISE_VLLM_OWN_OUT": str(out),
    }
    options = ("-q", "-p", "plugin", "-p", "no:cacheprovider", "-c", "pytest.ini", "--tb=native")
    command = [sys.executable, "-m", "pytest", *options, "--continue-on-collection-errors", *files]
    out.unlink(missing_ok=True)
    with (folder / f"{policy}.log").open("w") as log:
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, check=False)
    if not out.exists():
        sys.exit(f"pytest ended early under {policy}; see {folder / f'{policy}.log'}")
    outcomes: dict[str, str] = json.loads(out.read_text())
    return outcomes


def read_reasons(path: Path, policy: str) -> dict[str, str]:
    """Return pattern of "test outcome" -> reason, of the table rows that name `policy` or all."""
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", path.read_text(), re.MULTILINE)
    return {
        pattern: why.strip()
        for pattern, policies, why in rows
        if {policy, "all"} & set(re.split(r"[,\s]+", policies.strip()))
    }


def compare(
    stock: Mapping[str, str], ours: Mapping[str, str], reasons: Mapping[str, str]
) -> dict[str, Any]:
    """Return the counts of the tests that stock passes, and those that ours fail for no reason."""
    passed = [test for test, outcome in stock.items() if outcome == "passed"]
    differ = [test for test in passed if ours.get(test) != "passed"]
    found = {test: ours.get(test, "not run") for test in differ}
    unexplained = {
        test: outcome
        for test, outcome in found.items()
        if not any(fnmatchcase(f"{test} {outcome}", pattern) for pattern in reasons)
    }
    refused = sum("UnsupportedByEngine" in outcome for outcome in found.values())
    return {
        "stock": len(passed),
        "ours": len(passed) - len(differ),
        "refused at start": refused,
        "explained": len(differ) - len(unexplained),
        "unexplained": unexplained,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", choices=list(SETTINGS), default="pars")
    parser.add_argument("--sdist", type=Path, help=f"{SDIST}; left out, pip's index is asked")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    sdist = arguments.sdist or FOLDER / SDIST
    if not sdist.exists():
        fetch_sdist(sdist)
    unpack(sdist, FOLDER)
    write_model_config(FOLDER / "models/hub")
    reference = FOLDER / "stock.json"
    stock = json.loads(reference.read_text()) if reference.exists() else run_tests("stock", FOLDER)
    ours = run_tests(arguments.policy, FOLDER)
    found = compare(stock, ours, read_reasons(HERE / "differences.md", arguments.policy))
    if arguments.json:
        print(json.dumps({"policy": arguments.policy, **found}))
    else:
        print(
            f"{found['ours']} of {found['stock']}; reasons for {found['explained']} of the others"
        )
        for test, why in found["unexplained"].items():
            print(f"{test}\n    {why}")
    return 1 if found["unexplained"] else 0


if __name__ == "__main__":
    sys.exit(main())
