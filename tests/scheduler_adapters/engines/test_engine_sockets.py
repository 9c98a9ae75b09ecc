"""Reports of engines are read as they are now; a missing one is counted and logged once."""

import asyncio
import shutil
import socket
import stat

import pytest

from scheduler_adapters.engines.engine_sockets import EngineReports, report_server


def test_each_reader_gets_the_present_report_of_every_engine(tmp_path):
    now = {"steps": 1}
    servers = [report_server(tmp_path, n, lambda n=n: {"engine": n, **now}) for n in (1, 0)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    reports = EngineReports(tmp_path)
    for now["steps"] in (2, 3):
        assert asyncio.run(reports.read()) == [{"engine": n, "steps": now["steps"]} for n in (0, 1)]
    # A reader that leaves, and one that does not read, are no hindrance.
    for path in tmp_path.iterdir():
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(str(path))
    assert len(asyncio.run(reports.read())) == 2
    assert reports.drops.count == 0
    for server in servers:
        server.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["removed", "dead", "silent"])
def test_a_report_that_cannot_be_read_is_counted_and_logged_once(
    fault, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("scheduler_adapters.engines.engine_sockets._READ_S", 0.05)
    server = report_server(tmp_path, 0, dict)
    other = socket.socket(socket.AF_UNIX)
    if fault == "removed":
        shutil.rmtree(tmp_path)
    else:
        other.bind(str(tmp_path / "lengthwise-report-1.sock"))
    if fault == "silent":
        other.listen()
    reports = EngineReports(tmp_path)
    for count in (1, 2):
        assert asyncio.run(reports.read()) == ([] if fault == "removed" else [{}])
        assert reports.drops.count == count
    assert len(caplog.messages) == 1
    other.close()
    server.close()
