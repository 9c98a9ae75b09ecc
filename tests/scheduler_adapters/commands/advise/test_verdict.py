"""The verdict: which policy is recommended, and what is said of its gain and its price."""

from math import nan
from typing import Any

import pytest

from scheduler_adapters.commands.advise.replay import Figures, Spread
from scheduler_adapters.commands.advise.verdict import (
    LEAST_PROMPTS,
    TAILS,
    decide,
    nothing_to_gain,
    recommended,
)

ORDER = Spread(0.5, 0.45, 0.55)


def figures_of(**policies: tuple[float, float]) -> Figures:
    """Mean E2E, and each tail, of policies at loads 1 and 1.3; of FCFS both are 10."""
    return {
        (name.replace("_", "-"), load): [
            {"e2e_s.mean": mean_s, "queueing_s.mean": mean_s / 2, "later_fraction": 0.25}
            | {"delay_s.p99": 3.0, **dict.fromkeys(TAILS.values(), tail_s)}
        ]
        for load in (1.0, 1.3)
        for name, (mean_s, tail_s) in {"fcfs": (10.0, 10.0), **policies}.items()
    }


@pytest.mark.parametrize(
    ("policies", "found"),
    [
        ({"slai": (9.9, 10), "pars": (9.9, 10), "oracle": (5, 10)}, "fcfs"),
        ({"slai": (8.1, 10), "uniboost": (8.05, 11), "pars": (8, 10)}, "uniboost"),  # no scores
        ({"slai": (8.1, 20), "pars": (8, 11)}, "pars"),  # less harm
        ({"pars": (7, 30), "srpt": (7.1, 20)}, "srpt"),  # none is gentle: the least harm
        ({"pars": (7, 30), "uniboost_learned": (9, 11)}, "uniboost-learned"),  # gentle, and pays
        ({"pars": (7, 30), "uniboost_learned": (9.9, 11)}, "pars"),  # gentle, and saves nothing
    ],
)
def test_the_least_harm_and_cost_near_the_best_is_recommended(policies, found):
    assert recommended(figures_of(**policies), 0.2) == found


def test_orders_of_useless_scores_are_not_recommended():
    found = figures_of(pars=(5, 5), slai=(9, 10))
    assert recommended(found, 0.2, without=("pars",)) == "slai"


def test_nothing_is_gained_without_a_queue_or_an_order():
    assert nothing_to_gain(figures_of(oracle=(9, 10))) is None
    said = str(nothing_to_gain(figures_of(oracle=(10.001, 10))))
    assert said.startswith("the order hardly matters. Requests wait for 50.0% of their time")
    assert "would save 0.0% of the mean E2E" in said  # and not -0.0%


def verdict_of(policy: str, found: Figures, **changes: Any) -> tuple[str, str]:
    carried = dict.fromkeys(("fcfs", policy), (Spread(1, 1, 1), 1))
    given = {"carried": carried, "tolerance": 0.2, "tau_b": ORDER, "num_prompts": 2000}
    return decide(found, policy, **given | changes)


LEARNT = {"uniboost_learned": (9.0, 10.0), "srpt": (9.0, 10.0), "oracle": (6.0, 10.0)}


LESS = {"fcfs": (Spread(1, 1, 1), 1), "pars": (Spread(0.7, 0.7, 0.7), None)}


@pytest.mark.parametrize(
    ("policy", "mean_s", "tail_s", "changes", "answer", "said"),
    [
        ("pars", 7.0, 11.0, {}, "yes", "serve with pars. It saves 30.0% of the mean E2E. The"),
        ("pars", 7.0, 17.0, {}, "unclear", "TTFT p99 goes from 10 to 17 s (+70%)"),
        ("pars", 7.0, 17.0, {}, "unclear", "25% of the requests end later, the worst 1% of all by"),
        ("pars", 7.0, 17.0, {"tolerance": 0.7}, "yes", "Nothing is worse by more than 70%"),
        ("pars", 7.0, 9.0, {"carried": LESS}, "unclear", "the load within the target is worse by"),
        ("pars", 7.0, 9.0, {"num_prompts": LEAST_PROMPTS - 1}, "unclear", "too few"),
        ("fcfs", 9.9, 9.0, {"tau_b": Spread(0.02, -0.03, 0.07)}, "no", "do not predict"),
        ("fcfs", 9.9, 9.0, {"tau_b": Spread(nan, nan, nan)}, "no", "do not predict the lengths"),
        ("slai", 9.9, 9.0, {"tau_b": Spread(nan, nan, nan)}, "yes", "serve with slai"),
    ],
)
def test_the_answer_states_gain_and_price(policy, mean_s, tail_s, changes, answer, said):
    found = figures_of(slai=(8.5, 10.0), pars=(mean_s, tail_s), **LEARNT)
    answered, reason = verdict_of(policy, found, **changes)
    assert answered == answer
    assert said in reason


def test_a_small_gain_is_no_and_an_uncertain_one_is_not_clear():
    found = figures_of(**LEARNT | {"uniboost_learned": (9.95, 10.0), "srpt": (10.0, 10.0)})
    found |= figures_of(pars=(9.9, 10.0))
    answer, reason = verdict_of("fcfs", found)
    assert answer == "no"
    assert "the best other policy, pars, saves 1.0%" in reason
    uncertain = [dict(found["pars", 1.0][0], **{"e2e_s.mean": mean_s}) for mean_s in (9.0, 10.2)]
    answer, reason = verdict_of("fcfs", found | {("pars", 1.0): uncertain})
    assert answer == "unclear"
    assert reason.startswith("the ranker's errors decide. pars saves 4.0% [-")
