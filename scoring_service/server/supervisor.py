"""Several server processes behind one port, for machines with many cores.

One Python process spends about a quarter of a millisecond of its interpreter lock per request, so
beyond a few thousand requests per second it is the lock that is full, not the cores. The kernel
deals connections (not calls) out among the processes: clients should open several.
"""

from __future__ import annotations

import errno
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from lengthwise.errors import ConfigError, ServiceUnavailable
from scoring_service.server.worker import END_S, EndRequest
from scoring_service.service.config import ServerConfig, split_address

_log = logging.getLogger(__name__)
READY = "serving "
_LOOK_S: Final = 0.5
_START_S: Final = 120.0
"""How long a process may take until it serves."""
_SILENT_S: Final = 10.0
"""How long one that serves may show no sign of life."""
_PORT_S: Final = 2.0
"""How long the port may still be held by the workers of a supervisor that was killed."""


def supervise(config: ServerConfig, arguments: Sequence[str]) -> None:
    """Run `config.processes` servers until SIGTERM or SIGINT; start those again that die or hang.

    Args:
        config: of the service; its cores are shared out among the processes.
        arguments: further options of each process, as on the command line.

    Raises:
        ConfigError: the port is in use.
        ServiceUnavailable: a process did not start; it has printed why.
    """
    end = EndRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end.make)
    with _hold_port(config.address, config.drain_notice_s + _PORT_S) as held:
        host, _ = split_address("address", config.address)
        address = f"{host}:{held.getsockname()[1]}"
        children = [_Child(n, config, address, arguments) for n in range(config.processes)]
        try:
            for child in children:  # In turn: each times the model on cores of its own.
                child.start()
                if not child.wait_until_it_serves(end):
                    return
            print(children[0].line, flush=True)
            while not end.wait(_LOOK_S):
                for child in children:
                    child.look_after()
        finally:
            _end(children, config.drain_notice_s + config.drain_grace_s + END_S)


class _Child:
    """One server process."""

    def __init__(
        self, number: int, config: ServerConfig, address: str, arguments: Sequence[str]
    ) -> None:
        options = as_options(_share_of(config, number, address))
        self._command = [sys.executable, "-m", "scoring_service", "serve", *options, *arguments]
        self._process: subprocess.Popen[str] | None = None
        self.line = ""
        """With which it says that it serves; "" until it does."""
        self._alive_at_s = 0.0

    def start(self) -> None:
        """Start it, and listen to it; does not wait. On the thread that lives as long as it may."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.line, self._alive_at_s = "", time.monotonic()
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def wait_until_it_serves(self, end: EndRequest) -> bool:
        """False if `end` is made first. Raises ServiceUnavailable if it ends or hangs."""
        while not self.line:
            if end.wait(0.02):
                return False
            if self._has_ended() or self._is_silent():
                raise ServiceUnavailable("a server process did not start; its message is above")
        return True

    def look_after(self) -> None:
        """Start it again if it has ended, and end it if it hangs."""
        assert self._process is not None
        if self._has_ended():
            _log.error("process %d ended with %d", self._process.pid, self._process.returncode)
            self.start()
        elif self._is_silent():
            _log.error("process %d shows no sign of life and is ended", self._process.pid)
            self._process.kill()

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process is not None and not self._has_ended():
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, and end it if that takes longer."""
        if self._process is None:
            return
        try:
            self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            _log.error("process %d did not end in time and is killed", self._process.pid)
            self._process.kill()
            self._process.wait()

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _is_silent(self) -> bool:
        limit_s = _SILENT_S if self.line else _START_S
        return time.monotonic() - self._alive_at_s > limit_s

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if process is self._process:
                    self._alive_at_s = time.monotonic()
                    if line.startswith(READY):
                        self.line = line.strip()


def _end(children: Sequence[_Child], timeout_s: float) -> None:
    """End all, one that hangs by force, within `timeout_s` together."""
    for child in children:
        child.terminate()
    until_s = time.monotonic() + timeout_s
    for child in children:
        child.wait(until_s - time.monotonic())


def _share_of(config: ServerConfig, number: int, address: str) -> ServerConfig:
    """Configuration of one process: its share of the cores, and a metrics port of its own."""
    metrics_address = config.metrics_address
    if metrics_address is not None:
        host, port = split_address("metrics_address", metrics_address)
        metrics_address = f"{host}:{port + number if port else 0}"
    return replace(
        config,
        address=address,
        processes=1,
        shared_port=True,
        num_runners=max(1, config.runners() // config.processes),
        metrics_address=metrics_address,
    )


def as_options(settings: Any) -> list[str]:
    """A dataclass of settings as command-line options."""
    written = {True: "true", False: "false", None: "null"}
    values = ((field.name, getattr(settings, field.name)) for field in fields(settings))
    return [
        f"--{name}={written[value] if isinstance(value, bool | None) else value}"
        for name, value in values
    ]


def _hold_port(address: str, timeout_s: float) -> socket.socket:
    """A bound socket that does not listen: it keeps the port while the processes share it.

    A port in use is waited for, so long that the workers of a killed supervisor leave it.
    """
    host, port = split_address("address", address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    until_s = time.monotonic() + timeout_s
    while True:
        held = socket.socket(family, socket.SOCK_STREAM)
        try:
            # First without sharing, so that a port someone else serves is noticed.
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host.strip("[]"), port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((host.strip("[]"), port))
        except OSError as error:
            held.close()
            if error.errno == errno.EADDRINUSE and time.monotonic() < until_s:
                time.sleep(0.1)
                continue
            raise ConfigError(
                f"cannot listen on {address} ({error.strerror}); use another port"
            ) from error
        return held
