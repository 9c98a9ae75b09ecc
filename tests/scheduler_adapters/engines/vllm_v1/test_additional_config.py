"""Policy, settings and end of thinking as vLLM's `additional_config` carries them."""

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.engines.bundle_scoring import BundleSettings
from scheduler_adapters.engines.vllm_v1.additional_config import (
    configured_bundle,
    configured_policy,
    configured_think_end,
)


def test_the_settings_name_the_policy_and_what_it_takes():
    config = {"lengthwise": {"policy": "pars", "starve_after_s": 7}, "other": 1}
    assert configured_policy(config).after_s == 7  # type: ignore[attr-defined]
    assert configured_policy({}, "pars").name == "shortest-predicted+overtaking-guard"
    assert configured_policy({}, "fcfs").name == "fcfs"
    assert configured_policy(None, "fcfs").name == "fcfs"
    thinking = {"lengthwise": {"policy": "fcfs", "think_end": [7, 0]}}
    assert configured_policy(thinking, "fcfs").name == "fcfs"
    assert configured_think_end(thinking) == (7, 0)
    assert configured_think_end({}) == ()
    ranked = {"lengthwise": {"policy": "fcfs", "bundle": "b", "deadline_s": 2}}
    assert configured_policy(ranked).name == "fcfs"
    assert configured_bundle(ranked) == BundleSettings(bundle="b", deadline_s=2)
    assert configured_bundle(thinking) is None
    with pytest.raises(ConfigError, match="bundle is None; use a bundle's folder"):
        configured_bundle({"lengthwise": {"deadline_s": 2}})
    with pytest.raises(ConfigError, match="names policy 'pars', --scheduler-cls 'fcfs'"):
        configured_policy(config, "fcfs")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "names policy None"),
        ({"policy": "fcsf"}, "no policy named 'fcsf'"),
        ({"policy": "pars", "starve": 3}, "cannot be made"),
        ("pars", "use a JSON object"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(ConfigError, match=message):
        configured_policy({"lengthwise": settings})


@pytest.mark.parametrize("ids", ["</think>", [1.5], [-1], 7])
def test_think_end_must_be_token_ids(ids):
    with pytest.raises(ConfigError, match="list of token ids"):
        configured_think_end({"lengthwise": {"think_end": ids}})
