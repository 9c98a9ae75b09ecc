"""The page of an advice: its sentences and tables hold what was found."""

from typing import Any

import pytest

from scheduler_adapters.commands.advise import page
from scheduler_adapters.commands.advise.page import Advice
from scheduler_adapters.commands.advise.replay import Spread

NAMES = [f"{metric}.{name}" for metric in ("ttft_s", "e2e_s") for name in ("mean", "p99")]
NAMES += ["longest_wait_s", "later_fraction", "delay_s.p99"]


def drawn(*values: float) -> list[dict[str, float]]:
    return [dict.fromkeys(NAMES, value) for value in values]


def advice(**changes: Any) -> Advice:
    figures = {
        (name, load): rows
        for load in (0.7, 1.0)
        for name, rows in (("fcfs", drawn(4.0)), ("pars", drawn(1.0, 3.0)))
    }
    known: dict[str, Any] = {
        "answer": "yes",
        "reason": "it saves half",
        "policy": "pars",
        "figures": figures,
        "carried": {"fcfs": (Spread(1, 1, 1), 2), "pars": (Spread(1.5, 1.4, 1.6), 1)},
        "target": "Target x",
        "instances": 2,
        "tau_b": Spread(0.5, 0.4, 0.6),
        "ranker": "a ranker",
        "notes": ["Assumed.", "a note."],
        "commands": ["python -m scoring_service serve"],
    }
    return Advice(**known | changes)


def test_the_share_saved_stands_beside_the_name():
    table = page.latency_table(advice())
    assert table.columns[:2].tolist() == ["policy", "mean E2E saved"]
    assert table.iloc[0, :3].tolist() == ["fcfs", "-", "4"]
    name, saved, mean_s, *_ = table.iloc[1]
    assert (name, mean_s) == ("pars *", "2")
    assert saved.startswith("50.0% [")
    assert len(page.spread_rows(advice())) == 4 * len(NAMES)


@pytest.mark.parametrize(
    ("pars", "said"),
    [
        ((Spread(1.5, 1.4, 1.6), 1), "2 instances carry 1.5 [1.4, 1.6] times the log's load under"),
        ((Spread(1.5, 1.4, 1.6), 1), "needs 2 instances under FCFS and 1 instance under pars."),
        ((Spread(0, 0, 0), None), "At the log's own load the target is missed under pars."),
    ],
)
def test_what_the_instances_carry_is_a_sentence(pars, said):
    assert said in advice(carried={"fcfs": (Spread(1, 1, 1), 2), "pars": pars}).capacity


def test_the_page_begins_with_the_answer_and_the_next_command(tmp_path):
    page.write_advice(advice(), tmp_path)
    text = (tmp_path / "report.html").read_text()
    said = ("Yes: it saves half.", "scoring_service serve", "Assumed.", "Target x")
    places = [text.index(one) for one in said]
    assert places == sorted(places)
    assert (tmp_path / "latencies.csv").read_text().startswith("policy,load,metric,value,low,high")
    early = advice(answer="no", policy="fcfs", carried={}, ranker="", tau_b=None, commands=[])
    assert early.headline.startswith("No: it saves half. Keep the scheduler that you have")
    assert (early.capacity, early.quality) == ("", "No ranker was needed for this answer.")
    page.write_advice(early, tmp_path)
    assert "<h2>Next" not in (tmp_path / "report.html").read_text()
