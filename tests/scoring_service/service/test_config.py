"""Settings are checked where they are given."""

import os

import pytest

from lengthwise.errors import ConfigError
from scoring_service.service.config import ServerConfig, split_address


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("precision", "fp64"), ("max_queued_prompts", 0), ("max_concurrent_calls", -1)),
        *(("num_runners", 0), ("cache_entries", -1), ("drain_grace_s", -0.1)),
        ("drain_notice_s", float("nan")),
        *(("address", "nowhere"), ("address", "host:65536"), ("metrics_address", ":80")),
        *(("tls_key_file", "key.pem"), ("tls_client_ca_file", "ca.pem")),
    ],
)
def test_a_wrong_setting_is_named(name, value):
    with pytest.raises(ConfigError, match=name):
        ServerConfig(**{name: value})


def test_runners_are_one_per_core_or_two_on_a_gpu():
    assert ServerConfig().runners() == len(os.sched_getaffinity(0))
    assert ServerConfig().runners("gpu") == 2


def test_an_address_is_host_and_port():
    assert split_address("address", "[::1]:0") == ("[::1]", 0)
    assert split_address("address", "host:65535") == ("host", 65535)
