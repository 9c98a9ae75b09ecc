"""`serve`, as a user runs it: in its own process."""

import shutil
import signal
import socket

import pytest

from lengthwise.bundle import FP32
from scoring_service.client import ScoringClient
from tests.scoring_service.attacks import serving


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_until_it_is_told_to_stop_and_exits_0(tiny_bundle, stop):
    with serving(tiny_bundle) as (process, target):
        with ScoringClient(target, timeout_s=60) as client:
            assert client.score("long essay").value > client.score("yes").value
        process.send_signal(stop)
        assert process.wait(60) == 0


def test_a_missing_or_damaged_bundle_is_one_clear_line(fails, tiny_bundle, tmp_path):
    assert "python -m training fit" in fails("serve", "--bundle", str(tmp_path / "none"))
    copy = shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    (copy / FP32).write_bytes(b"x")
    assert "damaged" in fails("serve", "--bundle", str(copy))


def test_a_port_in_use_is_one_clear_line(fails, tiny_bundle):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in fails("serve", "--bundle", str(tiny_bundle.path), "--address", address)


def test_services_share_a_port_and_the_last_one_still_answers(tiny_bundle):
    with serving(tiny_bundle, "--shared-port", "true") as (first, target):
        options = ("--shared-port", "true", "--num-runners", "1", "--address", target)
        with serving(tiny_bundle, *options) as (_, same):
            assert same == target
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 0
            with ScoringClient(target, timeout_s=60) as client:
                assert client.score("yes").truncated is False


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--precision=fp64", "precision"),
        ("--address=nowhere", "address"),
        ("--max-batch-prompts=0", "max_batch_prompts"),
        ("--num-runners=-1", "num_runners"),
        ("--registry-model=b@champion", "give one of --bundle and --registry-model"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(fails, tiny_bundle, option, message):
    assert message in fails("serve", "--bundle", str(tiny_bundle.path), option)
    assert "give one of --bundle and --registry-model" in fails("serve")
