"""The offline command on a burst, under vLLM's own scheduler and under ours: a process each."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.errors import UnsupportedByEngine
from scheduler_adapters.timeline.timeline import Timeline, read_timeline

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

COMMAND = (sys.executable, "-m", "scheduler_adapters.engines.vllm_v1.offline")
SEATS = 4


def write_burst(path: Path, count: int = 60) -> Path:
    """Requests at 0 s whose scores are their lengths, 4 to 200 tokens, in random order."""
    random = np.random.default_rng(0)
    rows = [
        {"prompt_tokens": int(p), "output_tokens": int(n), "score": float(n)}
        for p, n in zip(random.integers(8, 100, count), random.integers(4, 200, count), strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Timeline]]:
    """Scheduler -> (what --json printed, the timeline it wrote)."""
    folder = tmp_path_factory.mktemp("offline")
    burst = write_burst(folder / "burst.jsonl")
    running = {
        name: subprocess.Popen(
            [
                *COMMAND,
                f"--requests={burst}",
                f"--scheduler={name}",
                f"--max-num-seqs={SEATS}",
                f"--out={folder / name}.jsonl",
                '--engine={"dtype": "float32"}',  # in bfloat16 answers depend on who shares a step
                "--clock=cpu",
                "--json",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("stock", "fcfs", "oracle")
    }
    printed = {name: process.communicate()[0] for name, process in running.items()}
    assert all(process.returncode == 0 for process in running.values())
    return {
        name: (json.loads(text.splitlines()[-1]), read_timeline(folder / f"{name}.jsonl"))
        for name, text in printed.items()
    }


def test_every_request_gets_its_tokens_and_fcfs_admits_as_the_stock_scheduler(
    outcomes: dict[str, tuple[Any, Timeline]],
) -> None:
    assert len({summary["tokens_sha256"] for summary, _ in outcomes.values()}) == 1
    for summary, timeline in outcomes.values():
        assert summary["num_finished"] == summary["num_requests"] == 60
        sizes = [len(timeline.token_s(row)) for row in range(60)]
        assert sizes == timeline.requests.output_tokens.tolist()
        assert (timeline.scheduled_s <= timeline.first_token_s).all()
        assert (timeline.first_token_s <= timeline.finished_s).all()
    order = {name: np.argsort(t.scheduled_s, kind="stable") for name, (_, t) in outcomes.items()}
    assert order["fcfs"].tolist() == order["stock"].tolist() == list(range(60))


def test_the_oracle_admits_by_length_and_answers_sooner(
    outcomes: dict[str, tuple[Any, Timeline]],
) -> None:
    summary, timeline = outcomes["oracle"]
    lengths = timeline.requests.output_tokens
    admitted = np.lexsort((lengths, timeline.scheduled_s))  # those of one step are equals
    assert (np.diff(lengths[admitted]) >= 0).all()
    stock = outcomes["stock"][0]
    ratio = stock["normalized_latency_s"]["mean"] / summary["normalized_latency_s"]["mean"]
    assert ratio > 1.5
    assert summary["hints"] == {"scored": 60, "unscored": 0, "invalid": 0, "late": 0}
    assert stock["hints"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--requests=nowhere.jsonl"], "error: nowhere.jsonl: the file does not exist"),
        (["--requests={burst}", "--scheduler=shortest"], "error: no policy named 'shortest'"),
        (["--requests={burst}", '--settings={"a": 1}'], "the stock scheduler takes none"),
        (["--requests={burst}", "--max-num-seqs=0"], "error: max_num_seqs is 0"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    from scheduler_adapters.engines.vllm_v1.offline import main

    burst = write_burst(tmp_path / "burst.jsonl", count=1)
    assert main([argument.replace("{burst}", str(burst)) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler_adapters.engines.vllm_v1 import in_process as driver

    monkeypatch.setattr(driver, "find_spec", lambda name: None)
    with (
        pytest.raises(UnsupportedByEngine, match="install vllm"),
        driver.open_engine(driver.OfflineConfig()),
    ):
        pass


def test_a_rate_takes_the_place_of_the_files_arrivals_and_a_cpu_clock_skips_idle_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from scheduler_adapters.engines.vllm_v1.offline import main

    requests, out = write_burst(tmp_path / "burst.jsonl", count=30), tmp_path / "timeline.jsonl"
    arguments = [f"--requests={requests}", f"--out={out}", "--clock=cpu", "--scheduler=pars"]
    arguments += ["--num-requests=20", "--rate-per-s=0.0005", "--json"]
    assert main(arguments) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["num_finished"] == summary["num_requests"] == 20
    timeline = read_timeline(out)
    arrival_s = timeline.requests.arrival_s
    assert (np.diff(arrival_s) > 0).all()
    assert 1e4 < arrival_s[-1] < 1e5  # 20 requests, one every 2,000 seconds
    assert (timeline.scheduled_s >= arrival_s).all()
    assert summary["e2e_s"]["mean"] < 100


def test_the_engine_arguments_shown_for_a_gpu_are_vllms(tmp_path: Path) -> None:
    from vllm import EngineArgs
    from vllm.config import CompilationConfig, KernelConfig

    page = (Path(__file__).parents[4] / "docs/results/gpu.md").read_text()
    shown = {*re.findall(r"(?:--engine |GPU_TESTS_ENGINE=)'(.*)'", page)}
    assert len(shown) > 1
    for text in shown:
        engine = json.loads(text)
        KernelConfig(**engine.pop("kernel_config"))
        CompilationConfig(**engine.pop("compilation_config", {}))
        EngineArgs(model=str(tmp_path), **engine)  # A folder is not looked up elsewhere.
