"""Unary calls that occupy no thread: answered on the thread that has their result.

grpcio's server gives every call a thread of its pool, which sleeps until the handler has its
result. Around a model run of a few milliseconds, waking these threads and refilling the caches is
most of the cost of a call. Here one method of a server is served from the thread that
polls its completion queue, through the binding that grpcio's own server is written in. This is not
public API: `supports` says whether this grpcio has what is needed (1.70 to 1.85 were tried), and
where it has not the method must be served the usual way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc

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


def supports(server: grpc.Server) -> bool:
    """Whether `server` is made as this module expects, with all that it needs."""
    state = getattr(server, "_state", None)
    core = getattr(server, "_cy_server", None)
    return (
        all(hasattr(cygrpc, name) for name in _NEEDED)
        and all(hasattr(core, name) for name in ("register_method", "request_registered_call"))
        and all(hasattr(state, name) for name in ("completion_queue", "lock", "rpc_states"))
    )


class DirectCall:
    """One call. Exactly one of `respond` and `fail` must be called, once, by any thread."""

    __slots__ = (
        "_answered",
        "_core",
        "_method",
        "_num_pending",
        "deadline_s",
        "metadata",
        "on_cancel",
    )

    def __init__(self, method: DirectMethod, event: Any) -> None:
        self._method = method
        self._core = event.call
        self._answered = False
        self._num_pending = 2
        """Of the events that end a call: it was closed, and its answer is sent or cannot be."""
        left_s = event.call_details.deadline - time.time()
        self.deadline_s: float | None = time.monotonic() + left_s if left_s < FOREVER_S else None
        """On `time.monotonic`; None: the caller set none."""
        self.metadata: Metadata = event.invocation_metadata
        self.on_cancel: Callable[[], object] = lambda: None
        """Called, perhaps on another thread, if the caller goes away before it has its answer."""

    def respond(self, message: bytes) -> None:
        """Send the answer."""
        self._send(
            cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS),
            cygrpc.SendMessageOperation(message, _NO_FLAGS),
            cygrpc.SendStatusFromServerOperation(None, cygrpc.StatusCode.ok, b"", _NO_FLAGS),
        )

    def fail(self, code: grpc.StatusCode, details: str, trailing: Metadata | None = None) -> None:
        """End the call with a status, and metadata after it."""
        self._send(
            cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS),
            cygrpc.SendStatusFromServerOperation(
                trailing, code.value[0], details.encode(), _NO_FLAGS
            ),
        )

    def fail_if_open(self, code: grpc.StatusCode, details: str) -> None:
        """`fail`, unless the call has its answer. For `DirectMethod`."""
        if not self._answered:
            self.fail(code, details)

    def receive(self) -> None:
        """Ask for the request. For `DirectMethod`."""
        operation = cygrpc.ReceiveMessageOperation(_NO_FLAGS)
        self._core.start_server_batch((operation,), self._on_message)

    def refuse(self) -> None:
        """Refuse the call without reading its request. For `DirectMethod`."""
        self._watch()
        self.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls are open; try again later")

    def _watch(self) -> None:
        operation = cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS)
        self._core.start_server_batch((operation,), self._on_closed)

    def _send(self, *operations: Any) -> None:
        assert not self._answered, "a call is answered once"
        self._answered = True
        self._core.start_server_batch(operations, self._end_of_event)

    def _on_message(self, event: Any) -> Handled:
        message = event.batch_operations[0].message()
        self._watch()
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


class DirectMethod:
    """One unary method of a server, which must support it and not yet have been started.

    Args:
        method: full name, /package.Service/Method.
        handle: gets each call with its serialized request, on the thread that serves all calls: it
            must not block.
        max_calls: calls that may be open at once; others are refused.
    """

    def __init__(
        self,
        server: grpc.Server,
        method: str,
        handle: Callable[[DirectCall, bytes], None],
        *,
        max_calls: int,
    ) -> None:
        self._core = server._cy_server
        self._state = server._state
        self._method = method
        self._handle = handle
        self._max_calls = max_calls
        self._num_open = 0
        self._core.register_method(method)

    def start(self) -> None:
        """Take calls; the server must have been started."""
        # grpcio's server waits with its end for all that is in here.
        with self._state.lock:
            self._state.rpc_states.add(self)
        self._request_call()

    def handle_safely(self, call: DirectCall, message: bytes) -> None:
        """Handle a call; whatever is raised ends that call and not the server."""
        try:
            self._handle(call, message)
        except Exception:
            _log.exception("%s failed", self._method)
            call.fail_if_open(grpc.StatusCode.INTERNAL, "the service failed; its log says how")

    def over(self, call: DirectCall) -> DirectCall:
        """Note the end of a call, on the serving thread."""
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
        if self._num_open <= self._max_calls:
            call.receive()
        else:
            call.refuse()
        self._request_call()
        return None, _NO_CALLBACKS
