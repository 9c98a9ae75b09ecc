"""The way of every call, however it came in: token, deadline, answer or status, counts.

Calls of the service, its streams and the Open Inference Protocol all pass through `Calls`; the
files of these say only how messages are read and written.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from lengthwise.errors import InvalidPrompt, ScoringError, ServiceOverloaded
from scoring_service.proto.status import CODE_OF, to_status, trailing_metadata
from scoring_service.server.metrics import Metrics
from scoring_service.server.security import Access, BearerTokens
from scoring_service.service.batching import Call
from scoring_service.service.scoring import CallAnswer, ScoringService
from scoring_service.transport.direct import DirectCall, Handle, Metadata
from scoring_service.transport.workers import Workers

_ON_WORKER: Final = ("ScoreBatch", "Report", "ModelInfer")
"""Methods whose requests may be large."""
_FAILED: Final = "the service failed; its log says how"
_log = logging.getLogger(__name__)
Context: TypeAlias = grpc.ServicerContext


class Asked(NamedTuple):
    """What a request asks for, without the request itself: it may be large."""

    prompts: Sequence[str]
    target_model: str
    write: Callable[[CallAnswer], Message]
    """Makes the response of an answer; what it raises is the call's error."""


class Calls:
    """Access, deadlines, errors and counts of the calls of one server.

    Args:
        workers: read requests that may be large.
        tokens: asked for every call but reports and streams; None accepts all.
        report_tokens: asked for reports.
    """

    def __init__(
        self,
        service: ScoringService,
        metrics: Metrics,
        workers: Workers,
        tokens: BearerTokens | None = None,
        report_tokens: Access | None = None,
    ) -> None:
        self.service = service
        self._metrics = metrics
        self._workers = workers
        self._tokens = tokens
        self._is_shared = tokens is not None and len(tokens) > 1
        self._report_tokens = report_tokens
        self._lock = threading.Lock()
        self._open_by_token: Counter[int] = Counter()
        self._streams_by_token: Counter[int] = Counter()

    def gate(self, method: str) -> Callable[[DirectCall], bool] | None:
        """What decides whether a call's request is read; None where every one is.

        It asks for a token, and for room where requests are read by workers. On False the call has
        its answer.
        """
        tokens = self._report_tokens if method == "Report" else self._tokens
        is_shared = method != "Report" and self._is_shared
        takes_room = method in _ON_WORKER
        if tokens is None and not takes_room:
            return None

        def admit(direct: DirectCall) -> bool:
            try:
                if tokens is not None:
                    number = tokens.check(direct.metadata)
                    if is_shared:
                        self._count_for_token(direct, number)
                if takes_room and self._workers.is_full:
                    raise self._too_much()
            except ScoringError as error:
                self._fail(direct, method, error)
                return False
            return True

        return admit

    def _count_for_token(self, direct: DirectCall, token: int) -> None:
        """Raises ServiceOverloaded if the calls of that token take the places of the others."""
        limit = self.service.config.max_token_calls
        if not self._take_place(self._open_by_token, token, limit):
            raise ServiceOverloaded(
                f"{limit} calls of this token are open, the most there may be; try again later",
                retry_after_s=max(self.service.batcher.predicted_wait_s(), 0.001),
            )
        direct.on_answered = partial(self._give_back, self._open_by_token, token)

    @contextmanager
    def stream_place(self, metadata: Metadata) -> Iterator[None]:
        """Hold one of the places for streams of a caller's token.

        Raises:
            ServiceOverloaded: they are all taken, so that other tokens find room.
        """
        if self._tokens is None or not self._is_shared:
            yield
            return
        token, limit = self._tokens.check(metadata), self.service.config.max_token_streams
        if not self._take_place(self._streams_by_token, token, limit):
            raise ServiceOverloaded(
                f"{limit} streams of this token are open, the most there may be; share a stream, "
                "or use ScoreBatch",
                retry_after_s=1.0,
            )
        try:
            yield
        finally:
            self._give_back(self._streams_by_token, token)

    def _take_place(self, taken: Counter[int], token: int, limit: int) -> bool:
        with self._lock:
            is_free = taken[token] < limit
            taken[token] += is_free
        return is_free

    def _give_back(self, taken: Counter[int], token: int) -> None:
        with self._lock:
            taken[token] -= 1

    def on_worker(self, method: str, handle: Handle, max_inline_bytes: int = 0) -> Handle:
        """`handle`, on a worker for requests that would hold up the thread that serves all."""

        def take(direct: DirectCall, serialized: bytes) -> None:
            if len(serialized) <= max_inline_bytes:
                handle(direct, serialized)
            elif not self._workers.submit(len(serialized), partial(handle, direct, serialized)):
                self._fail(direct, method, self._too_much())

        return take

    def answer(
        self,
        direct: DirectCall,
        serialized: bytes,
        request_type: type[Message],
        answer: Callable[[Any], Message],
    ) -> None:
        """Answer a call whose response is known at once."""
        method = method_of(request_type)
        try:
            response = serialize(answer(parse(request_type, serialized)))
        except Exception as error:
            self._fail(direct, method, error)
            return
        direct.respond(response)
        self.succeeded(method)

    def direct(
        self,
        direct: DirectCall,
        serialized: bytes,
        request_type: type[Message],
        read: Callable[[Any], Asked],
    ) -> None:
        """Have prompts scored and answer the call when they are; does not wait.

        Args:
            read: the prompts of a request, and how to write their answer.
        """
        method = method_of(request_type)
        try:
            asked = read(parse(request_type, serialized))
            end = partial(self._end, direct, method, asked.write)
            call = self.caller(direct.deadline_s)
            direct.on_cancel = call.cancel
            self.service.begin(asked.prompts, asked.target_model, call, end)
        except Exception as error:
            self._fail(direct, method, error)

    def score(self, prompts: Sequence[str], target_model: str, call: Call) -> CallAnswer:
        """The scores of a call's prompts, counted. Raises as `ScoringService.score_batch`."""
        answer = self.service.score_batch(prompts, target_model, call)
        self._metrics.observe(answer)
        return answer

    def caller(self, deadline_s: float | None) -> Call:
        """A caller with that deadline, on `time.monotonic`; None: the service's default."""
        if deadline_s is None:
            deadline_s = time.monotonic() + self.service.config.default_deadline_s
        return Call(deadline_s)

    def succeeded(self, method: str) -> None:
        """Count a call that was answered."""
        self._metrics.count_call(method, "OK")

    def failed(self, method: str, error: Exception) -> ScoringError:
        """Count a call that failed; returns what its caller is told."""
        told = told_of(method, error)
        self._metrics.count_call(method, CODE_OF[type(told)].name)
        return told

    def _end(
        self,
        direct: DirectCall,
        method: str,
        write: Callable[[CallAnswer], Message],
        answer: CallAnswer,
    ) -> None:
        try:
            response = serialize(write(answer))
        except Exception as error:
            self._fail(direct, method, error)
            return
        direct.respond(response)
        self._metrics.observe(answer)
        self.succeeded(method)

    def _fail(self, direct: DirectCall, method: str, error: Exception) -> None:
        told = self.failed(method, error)
        status = to_status(told)
        direct.fail_if_open(CODE_OF[type(told)], status.message, trailing_metadata(status))

    def _too_much(self) -> ServiceOverloaded:
        return ServiceOverloaded(
            "too many or too large requests wait to be read; try again later",
            retry_after_s=max(self.service.batcher.predicted_wait_s(), 0.01),
        )


def method_of(request_type: type[Message]) -> str:
    """Name of the method that takes such requests."""
    return str(request_type.DESCRIPTOR.name).removesuffix("Request")


def told_of(what: str, error: Exception) -> ScoringError:
    """The error that a caller is told: a defect of the service is logged and not shown."""
    if isinstance(error, ScoringError):
        return error
    _log.error("%s failed", what, exc_info=error)
    return ScoringError(_FAILED)


def parse(request_type: type[Message], serialized: bytes) -> Any:
    """Bytes as a message. Raises InvalidPrompt if they are not one."""
    try:
        return request_type.FromString(serialized)
    except DecodeError as error:
        raise InvalidPrompt(
            f"the request is not a {request_type.DESCRIPTOR.full_name} ({error}); "
            "prompts must be UTF-8"
        ) from error


def serialize(message: Message) -> bytes:
    """A message as bytes."""
    return bytes(message.SerializeToString())
