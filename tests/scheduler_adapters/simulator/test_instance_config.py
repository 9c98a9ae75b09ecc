"""Instances as settings: limits in place of the profile's, and requests that do not fit."""

import logging

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.instance_config import InstanceConfig, check_memory
from scheduler_adapters.workload.requests import make_requests

PROFILE = "llama-3-8b@a100-80g"


def test_limits_take_the_place_of_the_profile_s():
    plain = InstanceConfig(max_num_seqs=7, max_tokens=99).instance()
    assert plain == Instance.preset(PROFILE, max_num_seqs=7, max_tokens=99)
    limited = InstanceConfig(kv_blocks=50, host_gb_per_s=2.0).instance()
    assert limited.kv_blocks == 50
    assert limited.host is not None


def test_a_billion_blocks_hold_what_the_profile_s_does_not():
    huge = make_requests(prompt_tokens=[10**8], output_tokens=[10**8])
    assert InstanceConfig().instance().cannot_hold(huge.prompt_tokens, huge.output_tokens)[0]
    check_memory(huge, InstanceConfig(kv_blocks=10**9).instance())


def test_requests_too_large_are_counted_and_refused_if_none_fits(caplog):
    instance = InstanceConfig(kv_blocks=3).instance()
    short_and_long = make_requests(prompt_tokens=[8, 80], output_tokens=[8, 80])
    with caplog.at_level(logging.WARNING):
        check_memory(short_and_long, instance)
    assert "1 of 2 requests need more than 3 KV blocks of 16 tokens" in caplog.text
    with pytest.raises(ConfigError, match="all 1 requests need more than 3 KV blocks"):
        check_memory(short_and_long.take([1]), instance)
