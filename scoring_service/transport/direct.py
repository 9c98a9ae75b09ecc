"""Calls that occupy no thread: answered on the thread that has their result.

grpcio's server gives every call a thread of its pool, which sleeps until the handler has its
result. Around a model run of a few milliseconds, waking these threads and refilling the caches is
most of the cost of a call; and a few calls that never send their message hold all of the threads.
Here methods of a server are served from the thread that polls its completion queue, through the
binding that grpcio's own server is written in. This is not public API: `supports` says whether this
grpcio has what is needed (tried with 1.85).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self, TypeAlias

import grpc

from scoring_service.transport.blocked_calls import Waiting

try:
    from grpc._cython import cygrpc
except ImportError:  # pragma: no cover
    cygrpc = None

_NEEDED: Final = (
    "ReceiveCloseOnServerOperation",
    "ReceiveMessageOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendStatusFromServerOperation",
)
FOREVER_S: Final = 1e9
"""gRPC gives a call without a deadline one that is 292 billion years away."""
_NO_FLAGS: Final = 0
_NO_CALLBACKS: Final = ()
_log = logging.getLogger(__name__)
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
Handled: TypeAlias = tuple[object | None, tuple[()]]
"""What grpcio's loop wants of a handler of events: which call is over, and callbacks to make."""
Handle: TypeAlias = "Callable[[DirectCall, bytes], None]"
"""Gets a call with its serialized request, on the thread that serves all calls: must not block."""


def supports(server: grpc.Server) -> bool:
    """Whether `server` is made as this module expects, with all that it needs."""
    state = getattr(server, "_state", None)
    core = getattr(server, "_cy_server", None)
    return (
        all(hasattr(cygrpc, name) for name in _NEEDED)
        and all(hasattr(core, name) for name in ("register_method", "request_registered_call"))
        and all(
            hasattr(state, name) for name in ("completion_queue", "lock", "rpc_states", "stage")
        )
    )


class DirectCall:
    """One call. Exactly one of `respond` and `fail` must be called, once, by any thread."""

    __slots__ = (
        "_answered",
        "_begun",
        "_core",
        "_method",
        "_num_pending",
        "deadline_s",
        "metadata",
        "on_answered",
        "on_cancel",
    )

    def __init__(self, method: DirectMethod, event: Any) -> None:
        self._method = method
        self._core = event.call
        self._answered = False
        self._begun = False
        self._num_pending = 2
        """Of the events that end a call: it was closed, and its answer is sent or cannot be."""
        left_s = event.call_details.deadline - time.time()
        self.deadline_s: float | None = time.monotonic() + left_s if left_s < FOREVER_S else None
        """On `time.monotonic`; None: the caller set none."""
        self.metadata: Metadata = event.invocation_metadata
        self.on_cancel: Callable[[], object] = lambda: None
        """Called, perhaps on another thread, if the caller goes away before it has its answer."""
        self.on_answered: Callable[[], object] | None = None
        """Called, on any thread, when the call gets its answer or status."""

    def respond(self, message: bytes) -> None:
        """Send the answer."""
        self._end(
            cygrpc.SendMessageOperation(message, _NO_FLAGS),
            cygrpc.SendStatusFromServerOperation(None, cygrpc.StatusCode.ok, b"", _NO_FLAGS),
        )

    def fail(self, code: grpc.StatusCode, details: str, trailing: Metadata | None = None) -> None:
        """End the call with a status, and metadata after it."""
        self._end(
            cygrpc.SendStatusFromServerOperation(
                trailing, code.value[0], details.encode(), _NO_FLAGS
            )
        )

    def fail_if_open(
        self, code: grpc.StatusCode, details: str, trailing: Metadata | None = None
    ) -> None:
        """`fail`, unless the call has its answer."""
        if not self._answered:
            self.fail(code, details, trailing)

    def send(self, message: bytes, on_sent: Callable[[], object]) -> None:
        """Send one of several answers; the next one, and the end, must wait for `on_sent`."""

        def sent(event: Any) -> Handled:
            on_sent()
            return None, _NO_CALLBACKS

        operation = cygrpc.SendMessageOperation(message, _NO_FLAGS)
        self._core.start_server_batch((*self._head(), operation), sent)

    def cancel(self) -> None:
        """Break the call off: its client does not read its answer."""
        self._core.cancel()

    def receive(self) -> None:
        """Ask for the request. For `DirectMethod`."""
        operation = cygrpc.ReceiveMessageOperation(_NO_FLAGS)
        self._core.start_server_batch((operation,), self._on_message)

    def watch(self) -> None:
        """Ask to be told of the end of the call. For `DirectMethod`."""
        operation = cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS)
        self._core.start_server_batch((operation,), self._on_closed)

    def _head(self) -> tuple[Any, ...]:
        """What goes before the first answer."""
        if self._begun:
            return ()
        self._begun = True
        return (cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS),)

    def _end(self, *operations: Any) -> None:
        assert not self._answered, "a call is answered once"
        self._answered = True
        if self.on_answered is not None:
            self.on_answered()
        self._method.answered(self)
        self._core.start_server_batch((*self._head(), *operations), self._end_of_event)

    def _on_message(self, event: Any) -> Handled:
        message = event.batch_operations[0].message()
        self.watch()
        if self._method.arrived(self):  # Else it came too late, and the call has its answer.
            if message is None:
                self.fail(grpc.StatusCode.UNIMPLEMENTED, "a unary call has one message; send one")
            else:
                self._method.handle_safely(self, message)
        return None, _NO_CALLBACKS

    def _on_closed(self, event: Any) -> Handled:
        if event.batch_operations[0].cancelled():
            try:
                self.on_cancel()
            except Exception:
                _log.exception("a cancelled call could not be dropped")
        return self._end_of_event()

    def _end_of_event(self, _: Any = None) -> Handled:
        self._num_pending -= 1
        return (None if self._num_pending else self._method.over(self)), _NO_CALLBACKS


class Places(NamedTuple):
    """The calls of a server that wait for their client."""

    arriving: Waiting[DirectCall]
    """For a client that has not sent its message."""
    leaving: Waiting[Any]
    """For a client that has not taken its answer."""

    @classmethod
    def make(cls, *, timeout_s: float, max_arriving: int, max_leaving: int = 1024) -> Self:
        """Places for so many, each for so long."""
        return cls(
            Waiting(_message_is_missing, timeout_s=timeout_s, max_waiting=max_arriving),
            Waiting(lambda call: call.cancel(), timeout_s=timeout_s, max_waiting=max_leaving),
        )


def _message_is_missing(call: DirectCall) -> None:
    text = "the message of the call did not come in time, or too many wait for theirs; try again"
    call.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


class DirectMethod:
    """One method of a server, which must support it and not yet have been started.

    Args:
        method: full name, /package.Service/Method.
        handle: gets each call that has sent its request.
        places: where its calls wait for their clients.
        admit: asked for each call before its request is read; on False it has failed the call.
            None: all are admitted.
    """

    def __init__(
        self,
        server: grpc.Server,
        method: str,
        handle: Handle,
        places: Places,
        admit: Callable[[DirectCall], bool] | None = None,
    ) -> None:
        self._core = server._cy_server
        self._state = server._state
        self._method = method
        self._handle = handle
        self._places = places
        self._admit = admit
        self._num_open = 0
        self._core.register_method(method)

    def start(self) -> None:
        """Take calls; the server must have been started."""
        with self._state.lock:
            # grpcio's server waits with its end for all that is in here.
            self._state.rpc_states.add(self)
            self._request_call()

    def handle_safely(self, call: DirectCall, message: bytes) -> None:
        """Handle a call; whatever is raised ends that call and not the server."""
        try:
            self._handle(call, message)
        except Exception:
            _log.exception("%s failed", self._method)
            call.fail_if_open(grpc.StatusCode.INTERNAL, "the service failed; its log says how")

    def arrived(self, call: DirectCall) -> bool:
        """Note that a call's message is here; False if it was waited for no more."""
        return self._places.arriving.leave(call)

    def answered(self, call: DirectCall) -> None:
        """Note that a call's answer is on its way."""
        self._places.leaving.enter(call)

    def over(self, call: DirectCall) -> DirectCall:
        """Note the end of a call, on the serving thread."""
        self._places.leaving.leave(call)
        self._num_open -= 1
        return call

    def _request_call(self) -> None:
        queue = self._state.completion_queue
        self._core.request_registered_call(queue, queue, self._method, self._on_call)

    def _on_call(self, event: Any) -> Handled:
        if not event.success:  # The server stops.
            return self, _NO_CALLBACKS
        call = DirectCall(self, event)
        with self._state.lock:
            self._state.rpc_states.add(call)
        self._num_open += 1
        if self._admit is None or self._admit(call):
            self._places.arriving.enter(call)
            call.receive()
        else:
            call.watch()
        with self._state.lock:
            if self._state.stage.name == "STARTED":
                self._request_call()
                return None, _NO_CALLBACKS
        return self, _NO_CALLBACKS  # The server has begun to stop: this call was the last.
