"""Calls that occupy no thread: answered on the thread that has their result.

grpcio's server gives every call a thread, and waking it costs more than a short model run. A few
calls that never send their message would hold all threads. Here methods are served on the thread
that polls the server's completion queue, by the binding in which grpcio's own server is written. It
is not public API: `supports` checks whether the installed grpcio has it (tested with 1.85).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from grpc._cython import cygrpc

from lengthwise.addresses import network_of
from scoring_service.transport.limits import BlockedCalls

_NEEDED: Final = (
    (
        *("ReceiveCloseOnServerOperation", "ReceiveMessageOperation", "SendMessageOperation"),
        *("SendInitialMetadataOperation", "SendStatusFromServerOperation"),
    ),
    ("register_method", "request_registered_call"),
    ("completion_queue", "lock", "rpc_states", "stage"),
)
"""Names used of grpcio's binding, of a server's core and of a server's state."""
FOREVER_S: Final = 1e9
"""Time left beyond which a call has no deadline; gRPC then gives 292 billion years."""
NO_FLAGS: Final = 0
_MAX_UNREAD: Final = 1024
_log = logging.getLogger(__name__)
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
Handled: TypeAlias = tuple[object | None, tuple[()]]
"""Result of an event handler for grpcio's loop: the call that has ended, and callbacks."""


def supports(server: grpc.Server) -> bool:
    """Return whether grpcio and `server` have the internals that this module uses."""
    parts = (cygrpc, getattr(server, "_cy_server", None), getattr(server, "_state", None))
    return all(
        hasattr(part, name) for part, names in zip(parts, _NEEDED, strict=True) for name in names
    )


class DirectCall:
    """One call. Any thread must call `respond`, once, or `fail`."""

    def __init__(self, method: DirectMethod, event: Any) -> None:
        self._method = method
        self._core = event.call
        self._answered = False
        # Two events end a call: it was closed, and its answer was sent or cannot be sent.
        self._num_pending = 2
        left_s = event.call_details.deadline - time.time()
        self.deadline_s: float | None = time.monotonic() + left_s if left_s < FOREVER_S else None
        """Deadline on `time.monotonic`; None without one."""
        self.metadata: Metadata = event.invocation_metadata
        peer = unquote(self._core.peer())
        self.caller = network_of(peer.partition(":")[2].rpartition(":")[0].strip("[]"))
        """Address of the peer, until admission finds a token."""
        self.on_cancel: Callable[[], object] = lambda: None
        """Called, on any thread, if the client cancels the call before it is answered."""

    def respond(self, message: bytes) -> None:
        status = cygrpc.SendStatusFromServerOperation(None, cygrpc.StatusCode.ok, b"", NO_FLAGS)
        self._end(cygrpc.SendMessageOperation(message, NO_FLAGS), status)

    def fail(self, code: grpc.StatusCode, details: str, trailing: Metadata | None = None) -> None:
        """End the call with a status and trailing metadata, unless it is answered."""
        if not self._answered:
            status = cygrpc.SendStatusFromServerOperation(
                trailing, code.value[0], details.encode(), NO_FLAGS
            )
            self._end(status)

    def cancel(self) -> None:
        """Abort a call whose client does not read its answer."""
        self._core.cancel()

    def receive(self) -> None:
        """Start to receive the request. For `DirectMethod`."""
        operations = (cygrpc.ReceiveMessageOperation(NO_FLAGS),)
        self._core.start_server_batch(operations, self._on_message)

    def watch(self) -> None:
        """Subscribe to the end of the call. For `DirectMethod`."""
        operation = cygrpc.ReceiveCloseOnServerOperation(NO_FLAGS)
        self._core.start_server_batch((operation,), self._on_closed)

    def _end(self, *operations: Any) -> None:
        assert not self._answered, "a call is answered once"
        self._answered = True
        self._method.blocked.unread.add(self)
        self._core.start_server_batch((*self._head(), *operations), self._end_of_event)

    def _head(self) -> tuple[Any, ...]:
        return (cygrpc.SendInitialMetadataOperation(None, NO_FLAGS),)

    def _on_message(self, event: Any) -> Handled:
        message = event.batch_operations[0].message()
        self.watch()
        # Otherwise the message is late, and the call has failed already.
        if self._method.blocked.unsent.remove(self):
            if message is None:
                self.fail(grpc.StatusCode.UNIMPLEMENTED, "a unary call has one message; send one")
            else:
                self._method.handle_safely(self, message)
        return None, ()

    def _on_closed(self, event: Any) -> Handled:
        if event.batch_operations[0].cancelled():
            try:
                self.on_cancel()
            except Exception:
                _log.exception("a cancelled call could not be dropped")
        return self._end_of_event()

    def _end_of_event(self, _: Any = None) -> Handled:
        self._num_pending -= 1
        return (None if self._num_pending else self._method.end(self)), ()


Handle: TypeAlias = Callable[[Any, bytes], None]
"""Called with a `DirectCall` and its serialized request; must not block the thread of all calls."""
Admit: TypeAlias = Callable[[DirectCall], bool]
"""Check before a call's request is read; where it returns False, it has failed the call."""


class ClientBlocked(NamedTuple):
    """Calls of a server that are blocked on their client."""

    unsent: BlockedCalls[DirectCall]
    """Calls whose client has not sent its message."""
    unread: BlockedCalls[DirectCall]
    """Calls whose client has not read its answer."""

    @classmethod
    def make(cls, *, timeout_s: float, max_unsent: int) -> Self:
        return cls(
            BlockedCalls(_fail_unsent, timeout_s=timeout_s, max_calls=max_unsent),
            BlockedCalls(DirectCall.cancel, timeout_s=timeout_s, max_calls=_MAX_UNREAD),
        )


def _fail_unsent(call: DirectCall) -> None:
    call.fail(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "the message of the call did not arrive in time, or too many calls wait for theirs; retry",
    )


@dataclass(eq=False)
class DirectMethod:
    """One method of a server that `supports` accepts and that has not been started."""

    server: grpc.Server
    method: str
    """Full name, /package.Service/Method."""
    handle: Handle
    blocked: ClientBlocked
    admit: Admit | None = None
    """None admits all calls."""
    num_open: int = 0
    call_type: ClassVar[type[DirectCall]] = DirectCall

    def __post_init__(self) -> None:
        self._core, self._state = self.server._cy_server, self.server._state
        self._core.register_method(self.method)

    def start(self) -> None:
        """Accept calls; the server must have been started."""
        with self._state.lock:
            # grpcio's server ends only after every member of this set.
            self._state.rpc_states.add(self)
            self._request_call()

    def admits(self, call: DirectCall) -> bool:
        """Return whether the call may go on; otherwise it has failed."""
        return self.admit is None or self.admit(call)

    def handle_safely(self, call: DirectCall, message: bytes) -> None:
        """Handle a call; an exception ends that call and not the server."""
        try:
            self.handle(call, message)
        except DecodeError as error:
            call.fail(grpc.StatusCode.INVALID_ARGUMENT, f"no request of this method ({error})")
        except Exception:
            _log.exception("%s failed", self.method)
            call.fail(grpc.StatusCode.INTERNAL, "the service failed; its log says how")

    def end(self, call: DirectCall) -> DirectCall:
        """Record the end of a call, on the serving thread."""
        self.blocked.unread.remove(call)
        self.num_open -= 1
        return call

    def _request_call(self) -> None:
        queue = self._state.completion_queue
        self._core.request_registered_call(queue, queue, self.method, self._on_call)

    def _on_call(self, event: Any) -> Handled:
        if not event.success:  # The server is stopping.
            return self, ()
        call = self.call_type(self, event)
        with self._state.lock:
            self._state.rpc_states.add(call)
        self.num_open += 1
        if self.admits(call):
            self.blocked.unsent.add(call)
            call.receive()
        else:
            call.watch()
        with self._state.lock:
            if self._state.stage.name == "STARTED":
                self._request_call()
                return None, ()
        return self, ()  # The server is stopping: this call was the last one.
