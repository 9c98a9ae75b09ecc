"""Lifecycle of every call: token, deadline, answer or status, counts.

Calls of the service and of the Open Inference Protocol pass through `CallLifecycle`. The files of
these define only how messages are read and written.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from lengthwise.errors import InvalidPrompt, ScoringError, ServiceOverloaded
from scoring_service.proto.status import CLIENT_KEY, CODE_OF, DETAILS_KEY, to_status
from scoring_service.server.metrics import Metrics
from scoring_service.server.security import BearerTokens
from scoring_service.service.batching import Call
from scoring_service.service.scoring import CallAnswer, ScoringService
from scoring_service.shares import Client
from scoring_service.transport.direct import Admit, DirectCall, Handle
from scoring_service.transport.limits import Workers

_DEFAULT_DEADLINE_S: Final = 10.0
"""Of a call that sets none."""
_MAX_NAME: Final = 64
_log = logging.getLogger(__name__)


class PromptRequest(NamedTuple):
    """Prompts of a request, without the request itself: it may be large."""

    prompts: Sequence[str]
    target_model: str
    write: Callable[[CallAnswer], Message]
    """Returns the response of an answer, or raises the call's error."""


class Method(NamedTuple):
    """A method of a gRPC service."""

    request_type: type[Message]
    read: Callable[[Any], PromptRequest | Message]
    """Returns the prompts of a request, or the response if it needs no model run."""
    max_inline_bytes: float = math.inf
    """Size up to which requests are read on the thread of all calls; 0: all are read by workers."""


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

    def admission(self, name: str, *, needs_worker: bool = False) -> Admit | None:
        """Return the check of a call's token and of room at the workers; None without a check."""
        tokens = self.report_tokens if name == "Report" else self.tokens
        if tokens is None and not needs_worker:
            return None

        def admit(direct: DirectCall) -> bool:
            try:
                if tokens is not None:
                    direct.caller = f"token {tokens.check(direct.metadata)}"
                if needs_worker and not self.workers.has_room(Client(direct.caller)):
                    raise self._too_much()
            except ScoringError as error:
                self._fail(direct, name, error)
                return False
            return True

        return admit

    def handler(self, name: str, method: Method) -> Handle:
        handle = partial(self.handle, name, method)

        def take(direct: DirectCall, serialized: bytes) -> None:
            if len(serialized) <= method.max_inline_bytes:
                handle(direct, serialized)
                return
            task, client = partial(handle, direct, serialized), Client(direct.caller)
            if not self.workers.submit(len(serialized), task, client):
                self._fail(direct, name, self._too_much())

        return take

    def handle(self, name: str, method: Method, direct: DirectCall, serialized: bytes) -> None:
        """Answer a call, or start to score its prompts and answer it when they are scored."""
        try:
            request = method.read(parse(method.request_type, serialized))
            if isinstance(request, Message):
                self._respond(direct, name, request.SerializeToString())
                return
            call = Call(direct.deadline_s or time.monotonic() + _DEFAULT_DEADLINE_S)
            call.client, call.owners = _clients(direct, len(request.prompts))
            direct.on_cancel = call.cancel
            end = partial(self._end, direct, name, request.write)
            self.service.begin(request.prompts, request.target_model, call, end)
        except Exception as error:
            self._fail(direct, name, error)

    def _end(
        self,
        direct: DirectCall,
        name: str,
        write: Callable[[CallAnswer], Message],
        answer: CallAnswer,
    ) -> None:
        try:
            response = write(answer).SerializeToString()
        except Exception as error:
            self._fail(direct, name, error)
        else:
            self._respond(direct, name, response)
            self.metrics.observe(answer)

    def _respond(self, direct: DirectCall, name: str, response: bytes) -> None:
        direct.respond(response)
        self.metrics.count_call(name, "OK")

    def _fail(self, direct: DirectCall, name: str, error: Exception) -> None:
        if not isinstance(error, ScoringError):  # A defect of the service is not shown.
            _log.error("%s failed", name, exc_info=error)
            error = ScoringError("the service failed; its log says how")
        code, status = CODE_OF[type(error)], to_status(error)
        self.metrics.count_call(name, code.name)
        trailing = ((DETAILS_KEY, status.SerializeToString()),) if status.details else None
        direct.fail(code, status.message, trailing)

    def _too_much(self) -> ServiceOverloaded:
        return self.service.overloaded("too many or too large requests wait to be read", 0.01)


def _clients(direct: DirectCall, num_prompts: int) -> tuple[Client, list[Client]]:
    """Return the client of a call, and those of its prompts if it is one of several clients."""
    named = next((str(value) for key, value in direct.metadata if key == CLIENT_KEY), "")
    owners = [Client(direct.caller, name[:_MAX_NAME]) for name in named.split(",")]
    if len(set(owners)) == 1:
        return owners[0], []
    return Client(direct.caller), owners if len(owners) == num_prompts else []


def parse(request_type: type[Message], serialized: bytes) -> Any:
    """Return bytes as a message. Raises InvalidPrompt if they are malformed."""
    try:
        return request_type.FromString(serialized)
    except DecodeError as error:
        raise InvalidPrompt(
            f"the request is not a {request_type.DESCRIPTOR.full_name} ({error}); "
            "prompts must be UTF-8"
        ) from error
