"""Errors become statuses and come back as themselves."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import status_pb2

from lengthwise.errors import (
    InvalidPrompt,
    ScoringError,
    ServiceOverloaded,
    ServiceUnavailable,
)
from scoring_service.proto.status import (
    CODE_OF,
    DETAILS_KEY,
    from_rpc_error,
    from_status,
    to_status,
)


@pytest.mark.parametrize("kind", list(CODE_OF))
def test_every_error_the_server_returns_comes_back_as_itself(kind):
    assert type(from_status(to_status(kind("why")))) is kind


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_grpc_code_is_some_scoring_error(code):
    assert isinstance(from_status(status_pb2.Status(code=code.value[0])), ScoringError)


def test_retry_info_travels_in_the_status():
    error = from_status(to_status(ServiceOverloaded("full", retry_after_s=0.25)))
    assert error.retry_after_s == pytest.approx(0.25)
    assert from_status(to_status(ServiceOverloaded("full"))).retry_after_s is None


class Failed(grpc.RpcError):
    """A failed call, as a client sees it."""

    def __init__(self, code, details, trailing=()):
        self._code, self._details, self._trailing = code, details, trailing

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._trailing


def test_a_foreign_trailer_is_ignored():
    trailing = ((DETAILS_KEY, b"\xff\xff not protobuf"),)
    failed = Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", trailing)
    error = from_rpc_error(failed, "host:1")
    assert isinstance(error, ServiceOverloaded)
    assert error.retry_after_s is None


def test_a_failed_call_names_the_target_and_what_to_do():
    unavailable = from_rpc_error(Failed(grpc.StatusCode.UNAVAILABLE, "refused"), "host:1")
    assert isinstance(unavailable, ServiceUnavailable)
    assert "serve --address host:1" in str(unavailable)
    large = Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max")
    assert isinstance(from_rpc_error(large, "host:1"), InvalidPrompt)
    odd = from_rpc_error(Failed(grpc.StatusCode.DATA_LOSS, "gone"), "host:1")
    assert str(odd) == "DATA_LOSS: host:1: gone"
