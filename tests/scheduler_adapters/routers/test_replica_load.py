from scheduler_adapters.placement import Watch
from scheduler_adapters.routers.legs import Routed
from scheduler_adapters.routers.replica_load import ReplicaLoad
from scheduler_adapters.routers.replica_views import is_valid
from tests.scheduler_adapters.routers.test_legs import THINK_END, leg

NAMES = ("num_waiting", "num_thinking", "num_answering", "num_fresh_answering", "used_blocks")


def test_a_leg_counts_as_waiting_thinking_and_answering_in_turn():
    watch = Watch(quantum_tokens=2, demote_above_tokens=4, pace_s=0.5)
    load = ReplicaLoad(total_blocks=9, block_tokens=4, watch=watch, clock=lambda: 10.0)
    number = load.begin(leg(routed=Routed("r", 7, "x", "placement")))
    found = []
    for tokens in ([], [9], [9], [THINK_END], [9], [9]):
        if tokens:
            load.emitted(number, tokens)
        report = load.report()
        assert is_valid(report)
        found.append([report[name] for name in NAMES])
    thought = [[1, 1, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 2]]
    assert found == [*thought, [0, 0, 1, 1, 2], [0, 0, 1, 1, 2], [0, 0, 1, 0, 2]]
    # The two tokens of the answer are read one after the other.
    assert (report["paced_for_s"], report["arrived"]) == (1.0, {"r": 7})
    load.end(number)
    assert [load.report()[name] for name in NAMES] == [0] * 5
