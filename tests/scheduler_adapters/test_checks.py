"""The conformance suite passes every policy of ours and catches policies that break a law."""

from __future__ import annotations

import pytest

from scheduler_adapters.checks import LAWS, check_policy
from scheduler_adapters.policies.class_priority import ClassPriority
from scheduler_adapters.policies.fcfs import OffloadingFCFS
from scheduler_adapters.policies.starvation_guard import StarvationGuard
from scheduler_adapters.policy import POLICIES, Policy, load_policy
from scheduler_adapters.views import LoadView, Rank, RequestView
from scoring_service.errors import ConfigError, InvalidDecision


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_ours_keeps_every_law(name):
    assert len(check_policy(lambda: load_policy(name))) == 5 * len(LAWS)


WRAPPERS = {"guard": lambda policy: StarvationGuard(policy, after_s=2.0), "class": ClassPriority}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"pointwise", "listwise", "oracle"}))
def test_every_policy_keeps_every_law_inside_a_wrapper(name, wrapper):
    assert check_policy(lambda: WRAPPERS[wrapper](load_policy(name)))


@pytest.mark.parametrize("name", ["round-robin", "pascal"])
def test_so_does_every_policy_that_offloads(name):
    assert check_policy(lambda: load_policy(name, offload=True))
    assert check_policy(OffloadingFCFS)


class ShortestPrompt(Policy):
    name = "shortest-prompt"

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank((request.prompt_tokens,))


def test_a_policy_of_a_user_is_checked_and_loaded_by_import_path():
    assert check_policy(ShortestPrompt)
    assert load_policy(f"{__name__}:ShortestPrompt").name == "shortest-prompt"


class RanksNan(ShortestPrompt):
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank((float("nan"),))


class Raises(ShortestPrompt):
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank((request.score + 1,))  # type: ignore[operator]


class Writes(ShortestPrompt):
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        request.prompt_tokens += 1
        return Rank()


class EndsAtOnce(ShortestPrompt):
    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return Rank(valid_until_s=load.now_s)


class Remembers(ShortestPrompt):
    asked = 0

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        Remembers.asked += 1
        return Rank((Remembers.asked % 7,))


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (RanksNan, "NaN"),
        (Raises, "TypeError"),
        (Writes, "read-only"),
        (EndsAtOnce, "ended"),
        (Remembers, "no randomness"),
    ],
)
def test_a_policy_that_breaks_a_law_is_named(policy, complaint):
    with pytest.raises(InvalidDecision, match=complaint) as caught:
        check_policy(policy)
    assert "shortest-prompt" in str(caught.value)


def test_an_unknown_policy_is_refused_with_the_list():
    with pytest.raises(ConfigError, match="fcfs"):
        load_policy("first-come")


@pytest.mark.parametrize("path", ["no_such_module:Policy", "json:dumps", "json:NoSuchName"])
def test_an_import_path_without_a_policy_is_refused(path):
    with pytest.raises(ConfigError):
        load_policy(path)


def test_settings_that_a_policy_does_not_take_are_refused():
    with pytest.raises(ConfigError, match="quantum"):
        load_policy("pars", quantum=5)
