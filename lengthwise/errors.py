"""Every error that Lengthwise raises on purpose, in one tree.

    LengthwiseError
    ├── ConfigError (ValueError)          a setting is wrong
    ├── DataError (ValueError)            a record, card or trace breaks its schema
    ├── BundleError (RuntimeError)        model bundle missing, damaged, or for another tokenizer
    ├── ScoringError (RuntimeError)       a score could not be had; one class per gRPC status
    │   ├── InvalidPrompt                 INVALID_ARGUMENT
    │   ├── ServiceOverloaded             RESOURCE_EXHAUSTED
    │   ├── ScoringTimeout (TimeoutError) DEADLINE_EXCEEDED
    │   ├── ServiceUnavailable            UNAVAILABLE
    │   └── AccessDenied                  UNAUTHENTICATED
    └── SchedulingError (RuntimeError)
        ├── UnsupportedByEngine           the engine or its version cannot do what a policy needs
        └── InvalidDecision               a policy broke a law of the policy interface

A message has three parts: what happened, the offending value, what to do. Each branch is also a
built-in type, so callers that know nothing of this tree still catch the right thing.
"""

from os import PathLike


class LengthwiseError(Exception):
    """Root of the tree: `except LengthwiseError` is what a command line prints in one line."""


class ConfigError(LengthwiseError, ValueError):
    """A setting is wrong; the message names it and the values that are right."""


class DataError(LengthwiseError, ValueError):
    """A record, card or trace breaks its schema.

    `path` and `row` (counted from 0, None if the whole file is meant) say where.
    """

    def __init__(
        self, message: str, *, path: str | PathLike[str] | None = None, row: int | None = None
    ) -> None:
        where = "" if path is None else f"{path}: " if row is None else f"{path}, row {row}: "
        super().__init__(where + message)
        self.path = path
        self.row = row


class BundleError(LengthwiseError, RuntimeError):
    """A model bundle is missing, damaged, of an unknown format, or made for another tokenizer."""


class ScoringError(LengthwiseError, RuntimeError):
    """A score could not be had. The subclass says why, and so whether a retry can help."""


class InvalidPrompt(ScoringError):
    """The prompt breaks a limit of the service; sending it again cannot help."""


class ServiceOverloaded(ScoringError):
    """The service sheds load; try again after `retry_after_s` (None if it did not say)."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ScoringTimeout(ScoringError, TimeoutError):
    """The deadline passed before the score came."""


class ServiceUnavailable(ScoringError):
    """No service answers at the target, or it is shutting down."""


class AccessDenied(ScoringError):
    """The service does not accept the caller's bearer token, or wants one."""


class SchedulingError(LengthwiseError, RuntimeError):
    """A policy and an engine do not work together."""


class UnsupportedByEngine(SchedulingError):
    """The engine, or this version of it, cannot do what the policy requires."""


class InvalidDecision(SchedulingError):
    """A policy broke a law of the policy interface (a NaN key, a negative budget, ...)."""


def require(name: str, value: object, holds: bool, right: str) -> None:
    """Raise ConfigError unless a setting `holds`; `right` names the values that it may have."""
    if not holds:
        raise ConfigError(f"{name} is {value}; use {right}")


def at_least(name: str, value: float | None, least: float) -> None:
    """Raise ConfigError unless a setting is None or no less than `least`."""
    require(name, value, value is None or value >= least, f"{least} or more")
