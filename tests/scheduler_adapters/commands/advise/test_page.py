"""The page of an advice: its sentences and tables hold what was found."""

from dataclasses import replace
from math import nan
from typing import Any

import pytest

from scheduler_adapters.commands.advise import page
from scheduler_adapters.commands.advise.page import LEAST_PROMPTS, Advice, decide
from scheduler_adapters.commands.advise.replay import Spread

NAMES = [f"{metric}.{name}" for metric in ("ttft_s", "e2e_s") for name in ("mean", "p50", "p99")]


def drawn(*values: float) -> list[dict[str, float]]:
    return [dict.fromkeys([*NAMES, "group.longest 1%"], value) for value in values]


def advice(**changes: Any) -> Advice:
    figures = {
        (name, load): rows
        for load in (0.7, 1.0)
        for name, rows in (("fcfs", drawn(4.0)), ("pars", drawn(1.0, 3.0)))
    }
    known: dict[str, Any] = {
        "answer": "yes",
        "reason": "it saves half",
        "figures": figures,
        "gains": {"fcfs": Spread(0, 0, 0), "pars": Spread(0.5, 0.25, 0.75)},
        "slower": (0.25, 9.0),
        "carried": {"fcfs": (Spread(1, 1, 1), 2), "pars": (Spread(1.5, 1.4, 1.6), 1)},
        "target": "Target x",
        "instances": 2,
        "tau_b": Spread(0.5, 0.4, 0.6),
        "ranker": "a ranker",
        "notes": ["a note."],
        "commands": ["python -m scoring_service serve"],
        "banner": None,
    }
    return Advice(**known | changes)


def test_a_figure_has_an_interval_where_draws_differ():
    table = page.latency_table(advice()).set_index("policy")
    assert table.loc["fcfs", "E2E mean s"] == "4"
    assert table.loc["pars", "E2E mean s"].startswith("2 [")
    (row,) = page.group_rows(advice())
    assert row[:3] == ["longest 1%", "pars", "4"]
    assert row[-1] == "-50%"
    assert len(page.spread_rows(advice())) == 4 * (len(NAMES) + 1)


def test_the_cheapest_policy_is_a_sentence_and_no_has_no_command(tmp_path, monkeypatch):
    known = advice(commands=[])
    assert known.cheapest == (
        "Cheapest policy within 2% of the best: pars, which needs scores, with a mean E2E of "
        "2 [-20, 24] s; it is the best."
    )
    known = replace(known, figures=dict(known.figures) | {("slai", 1.0): drawn(2.03)})
    line = known.cheapest
    assert "slai, which needs no scores, with a mean E2E of 2.03 s, where pars has 2 [" in line
    monkeypatch.setattr(page, "write_report", lambda folder, sections, **_: sections)
    first, *_, last = page.write_advice(known, tmp_path)
    assert first.text.endswith(line)
    assert last.text.startswith("Keep the scheduler that you have")


def test_the_headline_is_a_rule_without_scores_if_it_saves_more():
    gains = {
        "fcfs": Spread(0, 0, 0),
        "pars": Spread(0.5, 0.2, 0.7),
        "oracle": Spread(0.9, 0.9, 0.9),
    }
    known = advice(gains=gains | {"slai": Spread(0.4, 0.4, 0.4)})
    assert known.headline == "Yes: it saves half."
    known = replace(known, gains=gains | {"slai": Spread(0.6, 0.6, 0.6)})
    said = "slai, which needs no scores, saves 60.0% of the mean E2E; PARS with these scores"
    assert known.headline == f"{said} 50.0%. Yes: it saves half."


@pytest.mark.parametrize(
    ("pars", "said"),
    [
        ((Spread(1.5, 1.4, 1.6), 1), "on 2 instances PARS carries 1.5 [1.4, 1.6] times"),
        ((Spread(1.5, 1.4, 1.6), 1), "FCFS needs 2 instances, PARS 1 instance."),
        ((Spread(0, 0, 0), None), "At the log's load pars does not meet it with these."),
    ],
)
def test_what_the_instances_carry_is_a_sentence(pars, said):
    assert said in advice(carried={"fcfs": (Spread(1, 1, 1), 2), "pars": pars}).capacity


def test_the_page_begins_with_the_answer_and_ends_with_commands(tmp_path):
    page.write_advice(advice(banner="INVENTED"), tmp_path)
    text = (tmp_path / "report.html").read_text()
    places = [text.index(said) for said in ("INVENTED. Yes: it saves half.", "25% of the requests")]
    places.append(text.index("scoring_service serve"))
    assert places == sorted(places)
    assert (tmp_path / "latencies.csv").read_text().startswith("policy,load,metric,value,low,high")


GOOD = Spread(0.3, 0.2, 0.4)
ORDER = Spread(0.5, 0.45, 0.55)


@pytest.mark.parametrize(
    ("gain", "best", "queueing", "tau_b", "prompts", "answer", "said"),
    [
        (GOOD, 0.5, 0.6, ORDER, 2000, "yes", "+30.0% of the mean E2E latency saved"),
        (GOOD, 0.5, 0.6, ORDER, 0, "yes", "true lengths would save +50.0%"),
        (Spread(0, -0.01, 0.01), 0.0, 0.001, ORDER, 2000, "no", "no queue to reorder"),
        (GOOD, 0.5, 0.6, Spread(0.02, -0.03, 0.07), 2000, "no", "do not predict the lengths"),
        (GOOD, 0.5, 0.6, Spread(nan, nan, nan), 2000, "no", "do not predict the lengths"),
        (GOOD, 0.5, 0.6, ORDER, LEAST_PROMPTS - 1, "unclear", "too few"),
        (Spread(-0.1, -0.2, 0.0), 0.3, 0.6, ORDER, 2000, "no", "too little: -10.0%"),
        (Spread(0.05, -0.02, 0.12), 0.3, 0.6, ORDER, 2000, "unclear", "errors decide"),
    ],
)
def test_the_answer_and_its_reason(gain, best, queueing, tau_b, prompts, answer, said):
    found, reason = decide(gain, best, queueing, tau_b, prompts)
    assert found == answer
    assert said in reason
