"""`bench-transformers`: a small burst on the CPU, and how the requests of a burst are made."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.__main__ import main
from scheduler_adapters.benchmarks.transformers_burst import BurstConfig, load_burst, row_of
from scheduler_adapters.simulator.latency.affine_fit import read_affine
from scheduler_adapters.timeline.timeline import read_timeline, timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests
from scheduler_adapters.workload.score_sources import PromptScores, achieved_tau_b


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = 300
    random = np.random.default_rng(3)
    table = {
        "arrival_s": np.arange(rows) / 10,
        "prompt_tokens": random.integers(2, 30, rows),
        "output_tokens": random.integers(2, 60, rows),
    }
    pd.DataFrame(table).to_parquet(tmp_path / "trace.parquet")
    return tmp_path / "trace.parquet"


def test_the_requests_of_a_burst_are_a_seeded_draw_with_scores_and_classes(trace: Path) -> None:
    config = BurstConfig(trace=trace, num_requests=200, max_context=80)
    requests = load_burst(config)
    assert len(requests) == 200
    assert not requests.arrival_s.any()
    assert requests.output_tokens.max() == 40
    score = config.setup.scored(requests).score
    assert achieved_tau_b(score, requests.output_tokens) == pytest.approx(0.6, abs=0.02)
    paying = requests.user_class == "paying"
    assert 0.4 < paying.mean() < 0.6
    assert set(requests.tbt_s[paying]) == {0.1}
    again = load_burst(config)
    assert (again.output_tokens == requests.output_tokens).all()
    assert (again.user_class == requests.user_class).all()


def test_scores_and_classes_of_the_trace_are_kept(trace: Path) -> None:
    table = pd.read_parquet(trace)
    table["score"], table["user_class"] = -table["output_tokens"], "gold"
    table.to_parquet(trace)
    requests = load_burst(BurstConfig(trace=trace, num_requests=300))
    assert (requests.score == -requests.output_tokens).all()
    assert set(requests.user_class) == {"gold"}


class Words:
    """Scores a prompt by its words."""

    def score_prompts(self, prompts: Sequence[str]) -> PromptScores:
        words = np.array([float(len(prompt.split())) for prompt in prompts])
        return PromptScores(values=words, prompt_tokens=words)


def test_scores_come_from_where_simulate_takes_them(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source of the option, else the trace's scores, else synthetic ones."""
    monkeypatch.setattr(
        "scheduler_adapters.workload.workload.open_prompt_scorer", lambda name: Words()
    )
    table = pd.read_parquet(trace)
    table["score"], table["prompt"] = 7.0, ["word " * (row % 9 + 1) for row in range(len(table))]
    table.to_parquet(trace)

    def scores(policy: str, source: str | None) -> set[float]:
        config = BurstConfig(trace=trace, scores=source, num_requests=100)
        requests = load_burst(config)
        assert (requests.output_tokens == table["output_tokens"][drawn].to_numpy()).all()
        return set(config.setup.scored(requests, by_oracle=policy == "oracle").score)

    drawn = np.sort(np.random.default_rng((0, 11)).permutation(300)[:100])
    lengths = set(table["output_tokens"][drawn])
    assert scores("pars", None) == scores("pars", "trace") == {7.0}
    assert scores("pars", "oracle") == scores("oracle", "bundle:b") == lengths
    assert scores("pars", "bundle:b") == set(drawn % 9 + 1.0)
    assert len(scores("pars", "synthetic")) == 100


def test_a_row_holds_what_was_measured_and_the_gaps_of_each_class() -> None:
    requests = make_requests(
        prompt_tokens=[4, 4], output_tokens=[3, 2], user_class=["paying", "free"]
    )
    timeline = timeline_from_token_times(
        requests, [[1.0, 1.5, 3.0], [2.0, 4.0]], scheduled_s=[0.0, 0.0], preemptions=[0, 1]
    )
    row = row_of("fcfs", timeline)
    assert (row["policy"], row["num_finished"], row["num_preemptions"]) == ("fcfs", 2, 1)
    assert (row["ttft_mean_s"], row["e2e_p50_s"], row["makespan_s"]) == (1.5, 3.5, 4.0)
    assert row["tbt_p99_paying_s"] == pytest.approx(1.49)
    assert row["tbt_p99_free_s"] == 2.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"policies": []},
        {"settings": {"rad": {}}},
        {"num_requests": 0},
        {"max_context": 1},
        {"scores": "guessed"},
        {"scores": "bundle:run/bundle"},
    ],
)
def test_impossible_bursts_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BurstConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.slow  # importing the engine takes seconds
def test_what_the_engine_cannot_run_is_refused_before_a_model_is_made(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for policy, reason in {"orca": "wants prompts whole", "pascal": "think_end"}.items():
        given = ["--trace", str(trace), "--policies", f"[{policy}]", "--shape", "7b"]
        assert main(["bench-transformers", *given]) == 2
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize(("device", "count"), [("cpu", 200), ("cuda:0", 2000)])
def test_a_burst_is_smaller_where_serving_it_takes_longer(
    device: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert BurstConfig(device=device).most_requests == count
    assert BurstConfig(device=device, num_requests=7).most_requests == 7


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_command_serves_the_same_burst_under_each_scheduler(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--num_requests", "16", "--max_num_seqs", "2", "--max_tokens", "16"]
    policies = ["--policies", "[fcfs, slai, oracle]", "--settings", "{slai: {max_tokens: 8}}"]
    out = tmp_path / "burst"
    given = ["--trace", str(trace), "--device", "cpu", "--out", str(out), *small, *policies]
    assert main(["bench-transformers", *given, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    runs = {run["policy"]: run for run in printed["runs"]}
    assert all(run["num_finished"] == 16 for run in runs.values())
    assert set(runs["slai"]) >= {"tbt_p99_paying_s", "tbt_p99_free_s", "ttft_mean_s"}
    drawn = np.sort(load_burst(BurstConfig(trace=trace, num_requests=16)).output_tokens)
    for name, is_sorted in {"fcfs": False, "slai": False, "oracle": True}.items():
        timeline = read_timeline(out / f"{name}.jsonl")
        sizes = timeline.requests.output_tokens
        as_scheduled = sizes[np.lexsort((sizes, timeline.scheduled_s))]
        assert (np.sort(sizes) == drawn).all()
        assert (as_scheduled == drawn).all() == is_sorted
        assert (timeline.requests.arrival_s <= timeline.scheduled_s.min()).all()
        steps = pd.read_csv(out / f"{name}.steps.csv")
        # The token that ends a prefill is no decode, and the last token is never computed on.
        assert steps.num_decodes.sum() == drawn.sum() - 16
        assert steps.prefill_tokens.sum() == timeline.requests.prompt_tokens.sum()
        busy_s = timeline.finished_s.max() - timeline.scheduled_s.min()
        assert steps.seconds.sum() == pytest.approx(busy_s, abs=1e-3)
        assert read_affine(out / f"{name}.steps.csv")[0].base_s > 0
    assert len(pd.read_csv(out / "summary.csv")) == 3
