from benchmarks.__main__ import main


def test_a_decision_is_measured_for_each_number_of_replicas(capsys):
    assert main(["routing", "--decisions=20"]) == 0
    numbers = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert numbers == ["3", "8", "32", "128"]
