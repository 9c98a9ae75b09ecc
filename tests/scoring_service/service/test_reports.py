"""Reports of observed lengths: rolling quality, log, metrics."""

import errno
import json
import math
import os
import urllib.request

import pytest

from lengthwise.errors import ConfigError, InvalidPrompt, ScoringError
from lengthwise.live.rank_quality import WINDOW, RankQuality
from scoring_service.client import Observed, ScoringClient
from scoring_service.service.config import ServerConfig
from scoring_service.service.reports import Observation, ReportBook, ReportLog
from scoring_service.service.scoring import ScoringService
from tests.scoring_service.waiting import wait_until


def seen(score: float, tokens: int, revision: str = "r1") -> Observation:
    return Observation("tiny-llm", tokens, score, revision)


def test_quality_is_of_the_served_revision_and_of_enough_reports():
    book = ReportBook()
    assert book.add([seen(n, n * 10) for n in range(5)], "r1") == 5
    assert book.quality["tiny-llm"].num_answers == 5
    assert math.isnan(book.quality["tiny-llm"].tau_b)
    assert book.add([seen(n, n * 10) for n in range(5, 30)], "r1") == 25
    assert book.quality["tiny-llm"].tau_b == pytest.approx(1)
    assert book.add([seen(n, -n, "r1") for n in range(30)], "r2") == 0
    assert book.quality == {}


def test_a_window_is_bounded_and_holds_no_prompt():
    book = ReportBook()
    for start in range(0, 3 * WINDOW, 50):
        one = [seen(n, n)._replace(prompt="x" * 1000) for n in range(start, start + 50)]
        book.add(one, "r1")
    assert book.quality["tiny-llm"].num_answers == WINDOW


def test_to_read_the_figures_computes_nothing(monkeypatch):
    book = ReportBook()
    book.add([seen(n, n) for n in range(30)], "r1")
    monkeypatch.setattr(RankQuality, "figures", None)
    assert book.quality["tiny-llm"].tau_b == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_model": "invented"}, "has tiny-llm"),
        ({"target_model": ""}, "names no target model"),
        ({"score": float("nan")}, "send what Score answered"),
        ({"score": float("inf")}, "send what Score answered"),
        ({"revision": "r" * 65}, "send what Score answered"),
        ({"prompt": "x" * 2_000_000}, "2000000 bytes"),
    ],
)
def test_an_observation_that_cannot_be_is_refused_with_its_call(tiny_model, change, message):
    service = ScoringService(tiny_model, ServerConfig())
    with pytest.raises(InvalidPrompt, match=message):
        service.report([seen(1.0, 5), seen(1.0, 5)._replace(**change)])
    assert service.reports.quality == {}


def test_a_report_without_a_prompt_does_not_break_retraining(tiny_model, tmp_path):
    from lengthwise.tables.options import RecordOptions
    from training.data.records import read_records

    book = ReportBook(ReportLog(str(tmp_path / "log.jsonl"), 10_000))
    book.add([seen(1.0, 5), seen(1.0, 6)._replace(prompt="Say hello.\n\0")], "r1")
    book.close()
    records, _ = read_records(tmp_path / "log.jsonl", RecordOptions(), "output_tokens")
    assert records["prompt"][:] == ["Say hello.\n\0"]
    assert records["output_tokens"][:] == [[6]]


@pytest.fixture
def server(serve, tmp_path):
    return serve(metrics_address="127.0.0.1:0", report_log=str(tmp_path / "reports.jsonl"))


def scrape(server) -> dict[str, float]:
    url = f"http://127.0.0.1:{server._scrapes.port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as response:
        lines = [line for line in response.read().decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_reported_lengths_reach_the_metrics_and_the_log(server, tmp_path):
    prompts = [f"{'essay ' * n}yes" for n in range(1, 31)]
    with ScoringClient(server.target, timeout_s=60) as client:
        scores = client.score_batch(prompts)
        observed = [
            Observed(score, 10 * n, "tiny-llm", prompt)
            for n, (score, prompt) in enumerate(zip(scores, prompts, strict=True))
        ]
        assert client.report(observed) == 30
        with pytest.raises(InvalidPrompt, match="observations"):
            client.report(observed * 3)
    metrics = scrape(server)
    assert metrics['scoring_live_tau_b{target_model="tiny-llm"}'] == pytest.approx(1, abs=0.05)
    assert metrics['scoring_observed_responses{target_model="tiny-llm"}'] == 30
    rows = [json.loads(line) for line in (tmp_path / "reports.jsonl").read_text().splitlines()]
    assert [row["output_tokens"] for row in rows] == [10 * n for n in range(30)]
    assert (rows[0]["prompt"], rows[0]["model"]) == (prompts[0], "tiny-llm")


def test_calls_stages_cache_and_model_are_in_the_metrics(server, tiny_bundle):
    with ScoringClient(server.target, timeout_s=60) as client:
        client.score("yes")
        client.score("yes")
        client.score_batch(["yes", "no"])
        client.info()
        for _ in range(2):
            with pytest.raises(InvalidPrompt):
                client.score("")
    expected = {
        'scoring_calls_total{code="OK",method="Score"}': 2,
        'scoring_calls_total{code="OK",method="ScoreBatch"}': 1,
        'scoring_calls_total{code="OK",method="Info"}': 2,  # a batch looks at the limits first
        'scoring_calls_total{code="INVALID_ARGUMENT",method="Score"}': 2,
        'scoring_stage_seconds_count{stage="infer"}': 3,
        "scoring_cache_hits_total": 2,
        "scoring_model_runs_total": 2,
    }
    revision = tiny_bundle.manifest.revision
    expected[f'scoring_model_info{{name="tiny",precision="fp32",revision="{revision}"}}'] = 1
    # A call is counted after its client has the answer.
    wait_until(lambda: expected.items() <= scrape(server).items())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def test_a_log_that_cannot_be_written_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="report_log"):
        ReportLog(str(tmp_path / "nowhere" / "log.jsonl"), 1000)


def test_the_log_and_its_predecessor_stay_within_the_limit(path):
    log = ReportLog(str(path), 1000)
    for number in range(100):
        log.append(f"{number:039}\n")
    assert path.stat().st_size + path.with_name("log.jsonl.1").stat().st_size <= 1000
    assert path.read_text().splitlines()[-1] == f"{99:039}"
    assert sorted(p.name for p in path.parent.iterdir()) == ["log.jsonl", "log.jsonl.1"]


def test_two_processes_append_to_one_file_across_a_rotation(path):
    one, other = ReportLog(str(path), 100), ReportLog(str(path), 100)
    other.append("o" * 30 + "\n")
    one.append("a" * 30 + "\n")
    other.append("b\n")
    assert path.read_text() == "a" * 30 + "\nb\n"


def test_a_file_moved_away_is_made_again_for_its_user_only(path):
    log = ReportLog(str(path), 1000)
    log.append("old\n")
    path.rename(path.with_name("taken"))
    log.append("new\n")
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o077 == path.with_name("taken").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("written", [0, 3])
def test_a_full_disk_is_an_error_and_leaves_no_half_line(path, monkeypatch, written):
    log = ReportLog(str(path), 1000)
    log.append("whole\n")
    real = os.write

    def full(file, block):
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, block[:written])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(ScoringError, match=r"cannot be written .*make room"):
            log.append("half a line\n")
    log.append("next\n")
    assert path.read_text() == "whole\nnext\n"
