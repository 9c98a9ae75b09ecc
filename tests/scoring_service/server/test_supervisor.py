"""Several processes behind one port."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lengthwise.child_processes import started
from lengthwise.command_line.options import parse
from scoring_service.client import Score, ScoringClient
from scoring_service.commands.serve import ServeOptions, serve
from scoring_service.server.supervisor import as_options
from scoring_service.service.config import ServerConfig
from tests.scoring_service.waiting import wait_until


def children_of(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


PYTHON_SERVE = (sys.executable, "-m", "scoring_service", "serve")


def command(bundle, address="127.0.0.1:0") -> list[str]:
    options = ["--processes", "2", "--bundle", str(bundle), "--address", address]
    return [*PYTHON_SERVE, *options, "--drain-grace-s", "2"]


@pytest.fixture
def supervisor(tiny_bundle):
    with started(command(tiny_bundle.path), ready="serving tiny") as (process, line):
        yield process, line.split()[-1]


def answers(target: str) -> list[bool]:
    """Each over a connection of its own."""

    def ask() -> bool:
        with ScoringClient(target, timeout_s=60) as client:
            return isinstance(client.score_batch(["yes"])[0], Score)

    return [ask() for _ in range(12)]


@pytest.mark.parametrize(
    "config",
    [
        ServerConfig(),
        ServerConfig(reload_poll_s=None, metrics_address="127.0.0.1:9", num_runners=3),
        ServerConfig(
            address="0.0.0.0:1", allow_plaintext=True, token_file="a b=c", precision="fp32"
        ),
    ],
)
def test_a_configuration_survives_its_way_through_the_command_line(config):
    options = ServeOptions(bundle="x", log_format="json")
    parsed = parse("serve", serve, [*as_options(options), *as_options(config)])
    assert parsed == {"options": options, "config": config}


@pytest.mark.slow
def test_two_processes_share_a_port_survive_a_death_and_end_together(supervisor):
    process, target = supervisor
    children = children_of(process.pid)
    assert len(children) == 2
    assert all(answers(target))

    os.kill(children[0], signal.SIGKILL)
    wait_until(lambda: children[0] not in children_of(process.pid))
    wait_until(lambda: len(children_of(process.pid)) == 2)
    wait_until(lambda: all(answers(target)))

    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not any(answers(target))


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_orphan_and_its_port_is_free(supervisor, tiny_bundle):
    process, target = supervisor
    children = children_of(process.pid)
    os.kill(children[0], signal.SIGSTOP)  # Even one that hangs, once it goes on.
    process.kill()
    process.wait(60)
    os.kill(children[0], signal.SIGCONT)
    wait_until(lambda: not any(map(exists, children)))
    with started(command(tiny_bundle.path, target), ready="serving tiny") as (again, line):
        assert line.endswith(target)
        again.terminate()
        assert again.wait(60) == 0


@pytest.mark.slow
def test_a_hung_process_is_killed_at_the_end_and_replaced_before(supervisor):
    process, target = supervisor
    hung, well = children_of(process.pid)
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: hung not in children_of(process.pid))
    wait_until(lambda: len(children_of(process.pid)) == 2)
    assert well in children_of(process.pid)
    wait_until(lambda: all(answers(target)))
    os.kill(well, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not exists(well)


@pytest.mark.slow
def test_a_process_that_cannot_start_or_listen_is_one_clear_line(supervisor, tiny_bundle, tmp_path):
    for arguments, error in (
        ((tmp_path / "none",), "is not a model bundle"),
        ((tiny_bundle.path, supervisor[1]), "cannot listen"),
    ):
        run = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stdout) == (2, "")
        assert error in run.stderr
