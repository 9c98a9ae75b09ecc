"""Errors as statuses, and read back as themselves."""

from types import SimpleNamespace

import grpc
import pytest
from google.rpc import status_pb2

from lengthwise.errors import InvalidPrompt, ScoringError, ServiceOverloaded, ServiceUnavailable
from scoring_service.proto import status


@pytest.mark.parametrize("kind", list(status.CODE_OF))
def test_every_error_the_server_returns_comes_back_as_itself(kind):
    assert type(status.from_status(status.to_status(kind("why")))) is kind


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_grpc_code_is_some_scoring_error(code):
    assert isinstance(status.from_status(status_pb2.Status(code=code.value[0])), ScoringError)


def test_retry_info_travels_in_the_status():
    error = status.from_status(status.to_status(ServiceOverloaded("full", retry_after_s=0.25)))
    assert error.retry_after_s == pytest.approx(0.25)
    assert status.from_status(status.to_status(ServiceOverloaded("full"))).retry_after_s is None


def failed(code, details, trailing=()):
    """A failed call, as a client sees it."""
    return SimpleNamespace(
        code=lambda: code, details=lambda: details, trailing_metadata=lambda: trailing
    )


def test_a_foreign_trailer_is_ignored():
    trailing = ((status.DETAILS_KEY, b"\xff\xff not protobuf"),)
    busy = failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", trailing)
    error = status.from_rpc_error(busy, "host:1")
    assert isinstance(error, ServiceOverloaded)
    assert error.retry_after_s is None


def test_a_failed_call_names_the_target_and_what_to_do():
    unavailable = status.from_rpc_error(failed(grpc.StatusCode.UNAVAILABLE, "refused"), "host:1")
    assert isinstance(unavailable, ServiceUnavailable)
    assert "serve --address host:1" in str(unavailable)
    large = failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max")
    assert isinstance(status.from_rpc_error(large, "host:1"), InvalidPrompt)
    odd = status.from_rpc_error(failed(grpc.StatusCode.DATA_LOSS, "gone"), "host:1")
    assert str(odd) == "DATA_LOSS: host:1: gone"
