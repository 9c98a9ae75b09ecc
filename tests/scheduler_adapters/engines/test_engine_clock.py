"""The clock of recordings: what it counts, and what it leaves out."""

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.engines import engine_clock
from scheduler_adapters.engines.engine_clock import SteadyClock, clock_kind, make_clock


class Machine:
    """Has a CPU clock, and may become slower."""

    def __init__(self) -> None:
        self.slowness = 1.0
        self.cpu_s = 0.0

    def work(self, amount: float) -> None:
        self.cpu_s += amount * self.slowness


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(engine_clock.time, "process_time", lambda: machine.cpu_s)

    def piece_s(clock: SteadyClock) -> float:
        machine.work(0.001)
        return 0.001 * machine.slowness

    monkeypatch.setattr(SteadyClock, "_piece_s", piece_s)
    return machine


def test_a_steady_clock_counts_work_at_any_speed(machine):
    clock = SteadyClock()
    clock.restart()
    for slowness in (1.0, 2.0, 0.7):
        machine.slowness = slowness
        for _ in range(engine_clock._RECENT):  # it learns the new speed
            machine.work(0.02)
            clock.note_speed()
        before_s = clock()
        machine.work(0.5)
        assert clock() - before_s == pytest.approx(0.5)


def test_measuring_takes_no_time_and_waiting_skips_ahead(machine):
    clock = SteadyClock()
    clock.restart()
    clock.note_speed()
    assert clock() == 0.0
    clock.wait_until(3.0)
    clock.wait_until(2.0)
    assert clock() == 3.0
    clock.restart()
    assert clock() == 0.0


def test_cpu_seconds_of_a_slower_machine_are_more(machine):
    clock = make_clock("cpu")
    machine.slowness = 2.0
    machine.work(0.5)
    clock.note_speed()
    assert clock() == 1.0
    clock.wait_until(4.0)
    assert clock() == 4.0


def test_cpu_seconds_are_the_clock_of_one_thread_on_a_cpu_only(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert clock_kind("cpu", None) == "steady"
    assert clock_kind("cpu", "wall") == "wall"
    assert clock_kind("cuda", None) == "wall"
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert clock_kind("cpu", None) == "wall"
    with pytest.raises(ConfigError, match="2 CPU threads"):
        clock_kind("cpu", "steady")
