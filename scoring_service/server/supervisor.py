"""Several server processes behind one port, for machines with many cores.

Beyond a few thousand requests per second the interpreter lock is the limit, not the cores. The
kernel distributes connections among the processes: clients should open several connections.
"""

import errno
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from lengthwise.child_processes import end_processes
from lengthwise.errors import ConfigError, ServiceUnavailable
from scoring_service.server.worker import END_S, EndRequest
from scoring_service.service.config import ServerConfig, split_address

_log = logging.getLogger(__name__)
READY: Final = "serving "
_POLL_S: Final = 0.5
_START_S: Final = 120.0
"""Longest start of a process."""
_SILENT_S: Final = 10.0
"""Longest time without a sign of life from a process that serves."""
_PORT_S: Final = 2.0
"""Longest time for which the workers of a killed supervisor still hold the port."""


def supervise(config: ServerConfig, arguments: Sequence[str]) -> None:
    """Run `config.processes` servers until SIGTERM or SIGINT; restart each one that dies or hangs.

    `arguments` are further options of each process. Raises ServiceUnavailable if one does not
    start, and ConfigError if the port is in use.
    """
    end = EndRequest.on_signals()
    with _hold_port(config.address, config.drain_notice_s + _PORT_S) as held:
        host, _ = split_address("address", config.address)
        address = f"{host}:{held.getsockname()[1]}"
        shares = [_share_of(config, number, address) for number in range(config.processes)]
        children = [_Child([*as_options(share), *arguments]) for share in shares]
        try:
            for child in children:  # In turn: each times the model on cores of its own.
                child.start()
                if not child.wait_until_ready(end):
                    return
            print(children[0].line, flush=True)
            while not end.wait(_POLL_S):
                for child in children:
                    child.restart_if_down()
        finally:
            started = [child.process for child in children if child.process is not None]
            end_processes(started, config.drain_notice_s + config.drain_grace_s + END_S)


class _Child:
    def __init__(self, options: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "scoring_service", "serve", *options]
        self.process: subprocess.Popen[str] | None = None
        self.line = ""
        """Line that it prints when it serves; "" before."""
        self._alive_at_s = 0.0

    def start(self) -> None:
        """Start the process, and a thread that reads its signs of life.

        Call it on the main thread: Linux ends the process together with the calling thread.
        """
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.line, self._alive_at_s = "", time.monotonic()
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def wait_until_ready(self, end: EndRequest) -> bool:
        """Return False if `end` is made first. Raises ServiceUnavailable if the process fails."""
        assert self.process is not None
        while not self.line:
            if end.wait(0.02):
                return False
            if self.process.poll() is not None or self._is_silent():
                raise ServiceUnavailable("a server process did not start; its message is above")
        return True

    def restart_if_down(self) -> None:
        """Start the process again if it has ended, and end it if it hangs."""
        assert self.process is not None
        if self.process.poll() is not None:
            _log.error("process %d ended with %d", self.process.pid, self.process.returncode)
            self.start()
        elif self._is_silent():
            _log.error("process %d shows no sign of life and is ended", self.process.pid)
            self.process.kill()

    def _is_silent(self) -> bool:
        limit_s = _SILENT_S if self.line else _START_S
        return time.monotonic() - self._alive_at_s > limit_s

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if process is self.process:
                    self._alive_at_s = time.monotonic()
                    if line.startswith(READY):
                        self.line = line.strip()


def _share_of(config: ServerConfig, number: int, address: str) -> ServerConfig:
    """Return the settings of one process: its share of the cores, a metrics port of its own."""
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
    """Return a dataclass of settings as command-line options."""
    written = {True: "true", False: "false", None: "null"}
    values = ((field.name, getattr(settings, field.name)) for field in fields(settings))
    return [
        f"--{name}={written[value] if isinstance(value, bool | None) else value}"
        for name, value in values
    ]


def _hold_port(address: str, timeout_s: float) -> socket.socket:
    """Return a bound socket that does not listen: it keeps the port for the processes.

    Waits up to `timeout_s` for a port in use, until the workers of a killed supervisor have ended.
    """
    host, port = split_address("address", address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    until_s = time.monotonic() + timeout_s
    while True:
        held = socket.socket(family, socket.SOCK_STREAM)
        try:
            # First without sharing, which fails if another program serves the port.
            socket.create_server((host.strip("[]"), port), family=family).close()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((host.strip("[]"), port))
            return held
        except OSError as error:
            held.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until_s:
                raise ConfigError(
                    f"cannot listen on {address} ({error.strerror}); use another port"
                ) from error
        time.sleep(0.1)
