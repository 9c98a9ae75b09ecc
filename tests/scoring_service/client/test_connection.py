"""Deadlines, metadata and errors that the three clients share."""

from __future__ import annotations

import grpc
import pytest

from lengthwise.errors import ConfigError, InvalidPrompt, ServiceUnavailable
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.connection import Connection
from scoring_service.client.fail_open import FailOpenScorer


@pytest.fixture
def connection():
    made = Connection("127.0.0.1:1", security=ClientSecurity(token="t"), timeout_s=2.0)
    yield made
    made.close()


def test_a_call_has_its_own_deadline_or_the_clients(connection):
    assert connection._options(None) == {"timeout": 2.0, "metadata": connection._metadata}
    assert connection._options(0.0)["timeout"] == 0.0
    assert connection._target_model == ""


def test_a_wrong_deadline_is_named_as_the_user_knows_it():
    with pytest.raises(ConfigError, match="budget_s is 0"):
        FailOpenScorer("127.0.0.1:1", budget_s=0)


@pytest.mark.parametrize("error", [ValueError("closed"), grpc.FutureCancelledError()])
def test_a_closed_channel_is_unavailable(connection, error):
    with pytest.raises(ServiceUnavailable, match="is closed"), connection._errors():
        raise error


def test_errors_of_ours_pass_unchanged(connection):
    error = InvalidPrompt("no text")
    with pytest.raises(InvalidPrompt) as caught, connection._errors():
        raise error
    assert caught.value is error
    with pytest.raises(KeyError), connection._errors():
        raise KeyError
