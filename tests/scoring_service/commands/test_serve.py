"""`serve`, as a user runs it: in its own process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lengthwise.bundle import FP32
from lengthwise.child_processes import started
from scoring_service.client import ScoringClient

COMMAND = [sys.executable, "-m", "scoring_service"]


@contextmanager
def serving(bundle, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its HOST:PORT."""
    arguments = ["serve", "--bundle", str(bundle.path), "--address", "127.0.0.1:0", *options]
    ready = f"serving tiny revision {bundle.manifest.revision} on 127.0.0.1:"
    with started([*COMMAND, *arguments], ready=ready) as (process, line):
        yield process, line.split()[-1]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_until_it_is_told_to_stop_and_exits_0(tiny_bundle, stop):
    with serving(tiny_bundle) as (process, target):
        with ScoringClient(target, timeout_s=60) as client:
            assert client.score("long essay").value > client.score("yes").value
        process.send_signal(stop)
        assert process.wait(60) == 0


def test_a_missing_bundle_is_one_clear_line(fails, tmp_path):
    assert "python -m training fit" in fails("serve", "--bundle", str(tmp_path / "none"))


def test_a_damaged_bundle_is_one_clear_line(fails, tiny_bundle, tmp_path):
    copy = tmp_path / "bundle"
    copy.mkdir()
    for path in tiny_bundle.path.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / FP32).write_bytes(b"x")
    assert "damaged" in fails("serve", "--bundle", str(copy))


def test_a_port_in_use_is_one_clear_line(fails, tiny_bundle):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        error = fails("serve", "--bundle", str(tiny_bundle.path), "--address", address)
    assert address in error


@pytest.mark.parametrize(
    "option", ["--precision=fp64", "--address=nowhere", "--max-batch-prompts=0", "--num-runners=-1"]
)
def test_a_wrong_setting_is_one_clear_line(fails, tiny_bundle, option):
    name = option.removeprefix("--").partition("=")[0].replace("-", "_")
    assert name in fails("serve", "--bundle", str(tiny_bundle.path), option)


def test_what_to_serve_is_one_of_two(fails):
    assert "give one of --bundle and --registry-model" in fails("serve")
    both = ["--bundle", "a", "--registry-model", "b@champion"]
    assert "give one of" in fails("serve", *both)


def test_the_form_of_the_log_is_text_or_json(fails, tiny_bundle):
    arguments = ["serve", "--bundle", str(tiny_bundle.path), "--log-format", "xml"]
    assert "text, json" in fails(*arguments)
