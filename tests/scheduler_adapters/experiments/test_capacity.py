"""`capacity`: bisection finds what it should, and the command says it with its spread."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_adapters.__main__ import main
from scheduler_adapters.experiments.capacity import highest_rate, mean_and_interval


@given(st.floats(0.06, 900))
def test_bisection_finds_the_edge_however_far_it_is(edge):
    found = highest_rate(lambda rate: rate <= edge, low=0.05, high=1.0, tolerance=0.01, grows=True)
    assert edge * 0.985 <= found <= edge


def test_the_ends_of_the_range_are_answers_too():
    assert highest_rate(lambda rate: False, low=1, high=2, tolerance=0.1) == 0.0
    assert highest_rate(lambda rate: True, low=1, high=2, tolerance=0.1) == 2


def test_the_interval_is_students():
    assert mean_and_interval([2.0])["interval"] == [2.0, 2.0]
    low, high = mean_and_interval([1.0, 2.0, 3.0])["interval"]
    # sd 1, n 3: half width 4.30 / sqrt(3)
    assert (low, high) == pytest.approx((2 - 2.483, 2 + 2.483), abs=0.01)


def test_a_looser_target_allows_a_higher_rate(capsys):
    rates = []
    for most_s in (10, 40):
        arguments = ["--num_requests=150", "--max_num_seqs=8", "--seeds=1", "--tolerance=0.1"]
        slo = '--slo={"e2e_s.p90": ' + str(most_s) + "}"
        assert main(["capacity", *arguments, slo, "--policies=[fcfs]", "--json"]) == 0
        rates.append(json.loads(capsys.readouterr().out)["capacity"][0]["mean"])
    assert 0 < rates[0] < rates[1]


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [('--slo={"speed.p99": 1}', "slo names 'speed.p99'"), ("--seeds=0", "seeds is 0")],
)
def test_bad_input_is_one_line(argument, complaint, capsys):
    assert main(["capacity", argument]) == 2
    assert complaint in capsys.readouterr().err
