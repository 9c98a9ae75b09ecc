"""The script for a lent GPU machine keeps what it has, whatever happens to a part."""

import json
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.gpu import run


def figures(out):
    return [json.loads(line) for line in (out / "figures.jsonl").read_text().splitlines()]


@pytest.fixture
def session(tmp_path):
    return run.Session(tmp_path, limit_s=600)


def test_each_figure_is_kept_as_it_comes_and_a_failure_is_one(session):
    session.run("good", 60, ["-c", "print('{\"x\": 1}'); print('{broken'); print('done')"])
    session.run("bad", 60, ["-c", "print('{\"x\": 2}'); raise SystemExit('no memory')"])
    first, good, second, bad = figures(session.out)
    assert (first, second) == ({"part": "good", "x": 1}, {"part": "bad", "x": 2})
    assert (good["exit"], good["last_line"]) == (0, "done")
    assert (bad["exit"], bad["last_line"]) == (1, "no memory")
    assert "no memory" in (session.out / "log.txt").read_text()
    assert "| bad | 1 |" in (session.out / "table.md").read_text()


def test_the_limit_of_a_part_ends_all_that_it_has_started(session):
    child = "import subprocess, sys; print('{\"x\": 1}', flush=True); "
    child += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    session.run("endless", run._LEAST_S + 0.1, ["-c", child])
    session.until_s = time.monotonic() + run._LEAST_S
    session.run("without time left", 60, ["-c", "print(1)"])
    figure, ended = figures(session.out)
    assert figure["x"] == 1
    assert ended["exit"] == -signal.SIGTERM
    assert ended["seconds"] < 60


def test_a_signal_ends_the_part_and_the_script_with_its_figures(tmp_path):
    sleeper = "print('{\"x\": 1}', flush=True); import time; time.sleep(600)"
    script = f"CHILD = {sleeper!r}\nfrom benchmarks.gpu import run; "
    script += "run.parts = lambda _: {'a': (99, ['-c', CHILD]), 'b': (99, ['-c', '1'])}; run.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "requests.csv", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "figures.jsonl").exists():
        time.sleep(0.05)
    process.terminate()
    printed, _ = process.communicate(timeout=120)
    assert "what was measured is kept" in printed
    assert process.returncode == 0
    assert [one["part"] for one in figures(tmp_path)] == ["a", "a"]


def burst(order, seed, whole_s):
    columns = dict.fromkeys(run._COLUMNS, 1.0) | {"whole_s": whole_s, "seats": 64}
    return {"part": "bursts", "order": order, "seed": seed} | columns


def test_the_table_has_the_mean_of_each_order_over_seeds():
    table = run.table_of([burst("fcfs", 0, 10.0), burst("oracle", 0, 5.0), burst("fcfs", 1, 12.0)])
    assert "| fcfs, 64 seats | mean | 11 |" in table
    assert "| oracle, 64 seats | mean | 5 |" in table
