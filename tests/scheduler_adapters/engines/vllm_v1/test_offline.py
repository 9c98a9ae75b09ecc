"""The offline command on a burst, under vLLM's own scheduler and under ours: a process each."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lengthwise.errors import UnsupportedByEngine
from scheduler_adapters.timeline.timeline import read_timeline

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

COMMAND = (sys.executable, "-m", "scheduler_adapters.engines.vllm_v1.offline")


def write_burst(path: Path, count: int = 60) -> Path:
    """Requests at 0 s whose scores are their lengths, 4 to 200 tokens, in random order."""
    random = np.random.default_rng(0)
    rows = [
        {"prompt_tokens": int(p), "output_tokens": int(n), "score": float(n)}
        for p, n in zip(random.integers(8, 100, count), random.integers(4, 200, count), strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_oracle_admits_by_length_and_answers_sooner_than_fcfs_which_admits_as_the_stock(
    tmp_path: Path,
) -> None:
    running, found = {}, {}
    for name in ("stock", "fcfs", "oracle"):
        arguments = [f"--requests={write_burst(tmp_path / 'burst.jsonl')}", f"--scheduler={name}"]
        arguments += ["--max-num-seqs=4", f"--out={tmp_path / name}.jsonl", "--clock=cpu", "--json"]
        arguments += ['--settings={"guard": "none"}'] * (name == "oracle")
        # In bfloat16 answers depend on who shares a step.
        command = [*COMMAND, *arguments, '--engine={"dtype": "float32"}']
        running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for name, process in running.items():
        summary = found[name] = json.loads(process.communicate()[0].splitlines()[-1])
        timeline = read_timeline(tmp_path / f"{name}.jsonl")
        lengths = timeline.requests.output_tokens
        assert summary["num_finished"] == summary["num_requests"] == 60
        assert [len(timeline.token_s(row)) for row in range(60)] == lengths.tolist()
        assert (timeline.scheduled_s <= timeline.first_token_s).all()
        assert (timeline.first_token_s <= timeline.finished_s).all()
        key = lengths if name == "oracle" else np.arange(60)
        admitted = np.lexsort((key, timeline.scheduled_s))  # those of one step are equals
        assert (np.diff(key[admitted]) >= 0).all()
    assert len({summary["tokens_sha256"] for summary in found.values()}) == 1
    stock_s, oracle_s = (found[n]["normalized_latency_s"]["mean"] for n in ("stock", "oracle"))
    assert stock_s > 1.5 * oracle_s
    assert found["oracle"]["hints"] == {"scored": 60, "unscored": 0, "invalid": 0, "late": 0}
    assert found["stock"]["hints"] is None


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
