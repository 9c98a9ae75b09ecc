"""Calls with several messages, without a thread of their own.

A stream holds a place until it ends, so their number is limited, of one client and in total.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

from scoring_service.transport.direct import NO_FLAGS, DirectCall, DirectMethod, Handled, Metadata

MAX_OF_CLIENT: Final = 64
"""Open streams of one method for one client: a token, else an address (IPv6: network)."""


class DirectStream(DirectCall):
    """One call; `send` any number of messages, from any thread, then `fail`."""

    def __init__(self, method: DirectMethod, event: Any) -> None:
        super().__init__(method, event)
        self.is_counted = False
        self._lock = threading.RLock()
        self._has_head = self._has_first = self._is_sending = False
        self._message: bytes | None = None
        """Message to send next; gRPC takes one at a time."""
        self._status: Any = None
        self._on_sent: Callable[[], object] = lambda: None

    def send(self, message: bytes, on_sent: Callable[[], object] = lambda: None) -> None:
        """Send a message, in place of one that the client's window has kept back.

        `on_sent` is called on the serving thread once gRPC has taken the message.
        """
        with self._lock:
            self._message, self._on_sent = message, on_sent
            self._flush()

    def fail(self, code: grpc.StatusCode, details: str, trailing: Metadata | None = None) -> None:
        """End the call with a status, unless it has one."""
        with self._lock:
            self._status = self._status or cygrpc.SendStatusFromServerOperation(
                trailing, code.value[0], details.encode(), NO_FLAGS
            )
            self._flush()

    def _flush(self) -> None:
        if self._is_sending or self._answered:
            return
        if self._message is None:
            if self._status is not None:
                self._end(self._status)
            return
        self._is_sending = True
        self._num_pending += 1
        self._method.blocked.unread.add(self)
        message, self._message = cygrpc.SendMessageOperation(self._message, NO_FLAGS), None
        self._core.start_server_batch((*self._head(), message), self._on_taken)

    def _head(self) -> tuple[Any, ...]:
        head = () if self._has_head else super()._head()
        self._has_head = True
        return head

    def receive(self) -> None:
        """Start to receive the next message, for which the client has limited time."""
        with self._lock:
            self._num_pending += self._has_first
        if self._has_first:
            self._method.blocked.unsent.add(self)
        super().receive()

    def _on_taken(self, event: Any) -> Handled:
        with self._lock:
            self._is_sending = False
            self._method.blocked.unread.remove(self)
            is_idle = event.success and self._message is None and not self._status
            self._flush()
        if is_idle:
            self._on_sent()
        return self._end_of_event()

    def _on_message(self, event: Any) -> Handled:
        message = event.batch_operations[0].message()
        is_first, self._has_first = not self._has_first, True
        if is_first:
            self.watch()
        # Otherwise the message is late, and the call has failed already.
        if self._method.blocked.unsent.remove(self):
            if message is None:
                self.fail(grpc.StatusCode.OK, "")  # the client has sent all
            else:
                self._method.handle_safely(self, message)
        return (None, ()) if is_first else self._end_of_event()

    def _end_of_event(self, _: Any = None) -> Handled:
        with self._lock:
            return super()._end_of_event()


@dataclass(eq=False)
class StreamMethod(DirectMethod):
    """One method with streams, of which a client holds a limited number."""

    max_open: int = 1024
    call_type = DirectStream
    _of_client: Counter[str] = field(default_factory=Counter)

    def admits(self, call: DirectCall) -> bool:
        """Return whether the call may go on; otherwise it has failed."""
        assert isinstance(call, DirectStream)
        if not super().admits(call):
            return False
        if self.num_open > self.max_open or self._of_client[call.caller] >= MAX_OF_CLIENT:
            too_many = "too many streams of this method are open; use fewer, or try again later"
            call.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, too_many)
            return False
        self._of_client[call.caller] += 1
        call.is_counted = True
        return True

    def end(self, call: DirectCall) -> DirectCall:
        """Record the end of a stream, on the serving thread."""
        assert isinstance(call, DirectStream)
        if call.is_counted:
            self._of_client[call.caller] -= 1
            self._of_client += Counter()  # removes clients without a stream
        return super().end(call)
