"""Lifecycle of every call: token, deadline, answer or status, counts.

Calls of the service and of the Open Inference Protocol pass through `CallLifecycle`. The files of
these define only how messages are read and written.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from lengthwise.errors import InvalidPrompt, ScoringError, ServiceOverloaded
from scoring_service.proto.status import CODE_OF, to_status, trailing_metadata
from scoring_service.server.metrics import Metrics
from scoring_service.server.security import BearerTokens
from scoring_service.service.batching import Call
from scoring_service.service.scoring import CallAnswer, ScoringService
from scoring_service.transport.direct import DirectCall, Handle
from scoring_service.transport.workers import Workers

_ON_WORKER: Final = ("ScoreBatch", "Report", "ModelInfer")
"""Methods whose requests may be large."""
_log = logging.getLogger(__name__)


class PromptRequest(NamedTuple):
    """Prompts of a request, without the request itself: it may be large."""

    prompts: Sequence[str]
    target_model: str
    write: Callable[[CallAnswer], Message]
    """Returns the response of an answer, or raises the call's error."""


@dataclass(eq=False)
class CallLifecycle:
    """Access, deadlines, errors and counts of the calls of one server."""

    service: ScoringService
    metrics: Metrics
    workers: Workers
    """Threads that read requests that may be large."""
    tokens: BearerTokens | None = None
    """Tokens accepted for every call but reports; None accepts every call."""
    report_tokens: BearerTokens | None = None
    """Tokens accepted for reports; None accepts every report."""

    def __post_init__(self) -> None:
        # With a single token no places are kept free.
        num_tokens = 0 if self.tokens is None or len(self.tokens) == 1 else len(self.tokens)
        limit = self.service.config.max_token_calls
        self._token_places = [threading.BoundedSemaphore(limit) for _ in range(num_tokens)]

    def admission(self, method: str) -> Callable[[DirectCall], bool] | None:
        """Return the check before a call's request is read: its token, and room at the workers.

        Where the check returns False, it has failed the call. None: there is nothing to check.
        """
        tokens = self.report_tokens if method == "Report" else self.tokens
        is_limited = method != "Report" and bool(self._token_places)
        needs_worker = method in _ON_WORKER
        if tokens is None and not needs_worker:
            return None

        def admit(direct: DirectCall) -> bool:
            try:
                if tokens is not None:
                    number = tokens.check(direct.metadata)
                    if is_limited:
                        self._take_token_place(direct, number)
                if needs_worker and self.workers.is_full:
                    raise self._too_much()
            except ScoringError as error:
                self._fail(direct, method, error)
                return False
            return True

        return admit

    def _take_token_place(self, direct: DirectCall, token: int) -> None:
        """Hold a place of a token until the answer. Raises ServiceOverloaded without a free one."""
        places = self._token_places[token]
        if not places.acquire(blocking=False):
            limit = self.service.config.max_token_calls
            raise self.service.overloaded(
                f"{limit} calls of this token are open, the most there may be"
            )
        direct.on_answered = places.release

    def on_worker(self, method: str, handle: Handle, max_inline_bytes: int = 0) -> Handle:
        """Return `handle` on a worker for requests that would block the thread of all calls."""

        def take(direct: DirectCall, serialized: bytes) -> None:
            if len(serialized) <= max_inline_bytes:
                handle(direct, serialized)
            elif not self.workers.submit(len(serialized), partial(handle, direct, serialized)):
                self._fail(direct, method, self._too_much())

        return take

    def answer(
        self,
        direct: DirectCall,
        serialized: bytes,
        request_type: type[Message],
        answer: Callable[[Any], Message],
    ) -> None:
        """Answer a call whose response needs no model run."""
        self._respond(
            direct, _method(request_type), lambda: answer(parse(request_type, serialized))
        )

    def score(
        self,
        direct: DirectCall,
        serialized: bytes,
        request_type: type[Message],
        read: Callable[[Any], PromptRequest],
    ) -> None:
        """Start to score the prompts of a call, and answer it when they are scored."""
        method = _method(request_type)
        try:
            request = read(parse(request_type, serialized))
            default_s = self.service.config.default_deadline_s
            call = Call(direct.deadline_s or time.monotonic() + default_s)
            direct.on_cancel = call.cancel
            end = partial(self._end, direct, method, request.write)
            self.service.begin(request.prompts, request.target_model, call, end)
        except Exception as error:
            self._fail(direct, method, error)

    def _end(
        self,
        direct: DirectCall,
        method: str,
        write: Callable[[CallAnswer], Message],
        answer: CallAnswer,
    ) -> None:
        if self._respond(direct, method, lambda: write(answer)):
            self.metrics.observe(answer)

    def _respond(self, direct: DirectCall, method: str, make: Callable[[], Message]) -> bool:
        try:
            response = make().SerializeToString()
        except Exception as error:
            self._fail(direct, method, error)
            return False
        direct.respond(response)
        self.metrics.count_call(method, "OK")
        return True

    def _fail(self, direct: DirectCall, method: str, error: Exception) -> None:
        public = public_error(method, error)
        code, status = CODE_OF[type(public)], to_status(public)
        self.metrics.count_call(method, code.name)
        direct.fail(code, status.message, trailing_metadata(status))

    def _too_much(self) -> ServiceOverloaded:
        return self.service.overloaded("too many or too large requests wait to be read", 0.01)


def _method(request_type: type[Message]) -> str:
    return str(request_type.DESCRIPTOR.name).removesuffix("Request")


def public_error(method: str, error: Exception) -> ScoringError:
    """Return the error that the client gets; a defect of the service is logged and hidden."""
    if isinstance(error, ScoringError):
        return error
    _log.error("%s failed", method, exc_info=error)
    return ScoringError("the service failed; its log says how")


def parse(request_type: type[Message], serialized: bytes) -> Any:
    """Return bytes as a message. Raises InvalidPrompt if they are malformed."""
    try:
        return request_type.FromString(serialized)
    except DecodeError as error:
        raise InvalidPrompt(
            f"the request is not a {request_type.DESCRIPTOR.full_name} ({error}); "
            "prompts must be UTF-8"
        ) from error
