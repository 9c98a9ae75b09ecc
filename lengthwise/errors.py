"""Every error that Lengthwise raises on purpose, in one tree.

    LengthwiseError
    ├── ConfigError (ValueError)          a setting is wrong
    ├── DataError (ValueError)            a record, card or trace breaks its schema
    ├── BundleError (RuntimeError)        model bundle missing, damaged, or for another tokenizer
    ├── ScoringError (RuntimeError)       a score is not available; one class per gRPC status
    │   ├── InvalidPrompt                 INVALID_ARGUMENT
    │   ├── ServiceOverloaded             RESOURCE_EXHAUSTED
    │   ├── ScoringTimeout (TimeoutError) DEADLINE_EXCEEDED
    │   ├── ServiceUnavailable            UNAVAILABLE
    │   └── AccessDenied                  UNAUTHENTICATED
    └── SchedulingError (RuntimeError)
        ├── UnsupportedByEngine           the engine or its version cannot do what a policy needs
        └── InvalidDecision               a policy broke a law of the policy interface

A message has three parts: the event, the offending value, the advice. Each branch is also a
built-in type, so that callers without this tree catch it too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any


class LengthwiseError(Exception):
    """Root of the tree; command lines print such an error in one line."""


class ConfigError(LengthwiseError, ValueError):
    """Wrong setting; the message names the setting and its right values."""


class DataError(LengthwiseError, ValueError):
    """Record, card or trace that breaks its schema.

    `path` and `row` are the place; rows are counted from 0, and None is the whole file.
    """

    def __init__(
        self, message: str, *, path: str | PathLike[str] | None = None, row: int | None = None
    ) -> None:
        where = "" if path is None else f"{path}: " if row is None else f"{path}, row {row}: "
        super().__init__(where + message)
        self.path = path
        self.row = row


class BundleError(LengthwiseError, RuntimeError):
    """Model bundle that is missing, damaged, of an unknown format, or for another tokenizer."""


class ScoringError(LengthwiseError, RuntimeError):
    """Score that is not available; the subclass is the reason."""


class InvalidPrompt(ScoringError):
    """Prompt that breaks a limit of the service; a retry cannot help."""


class ServiceOverloaded(ScoringError):
    """Overload of the service; retry after `retry_after_s` (None if unknown)."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ScoringTimeout(ScoringError, TimeoutError):
    """Deadline that passed before the score arrived."""


class ServiceUnavailable(ScoringError):
    """Target without a service, or with one that is shutting down."""


class AccessDenied(ScoringError):
    """Bearer token that is missing or that the service refuses."""


class SchedulingError(LengthwiseError, RuntimeError):
    """Policy and engine that do not work together."""


class UnsupportedByEngine(SchedulingError):
    """Requirement of a policy that the engine, or its version, lacks."""


class InvalidDecision(SchedulingError):
    """Decision that breaks a law of the policy interface, such as a NaN key."""


@contextmanager
def raised_as(
    kind: type[LengthwiseError], text: str, *foreign: type[Exception], **place: Any
) -> Iterator[None]:
    """Context in which errors of a library become ours, with the reason at {} of the text.

    Our own errors pass; `place` is for the constructor, as of a DataError.
    """
    try:
        yield
    except foreign as error:
        if isinstance(error, LengthwiseError):
            raise
        said = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        raise kind(text.replace("{}", " ".join(said.split())[:500]), **place) from error


def require(name: str, value: object, holds: bool, right: str) -> None:
    """Raise ConfigError unless a setting `holds`; `right` names its right values."""
    if not holds:
        raise ConfigError(f"{name} is {value}; use {right}")
