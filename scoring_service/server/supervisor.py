"""Several server processes behind one port, for machines with many cores.

One Python process spends about a quarter of a millisecond of its interpreter lock per request, so
beyond a few thousand requests per second it is the lock that is full, not the cores. The kernel
deals connections (not calls) out among the processes: clients should open several.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from scoring_service.errors import ConfigError, ServiceUnavailable
from scoring_service.service.config import ServerConfig, split_address

_log = logging.getLogger(__name__)
READY = "serving "
_RESTART_AFTER_S = 1.0


def supervise(config: ServerConfig, arguments: Sequence[str]) -> None:
    """Run `config.processes` servers until SIGTERM or SIGINT; start those again that die.

    Args:
        config: of the service; its cores are shared out among the processes.
        arguments: further options of each process, as on the command line.

    Raises:
        ConfigError: the port is in use.
        ServiceUnavailable: a process did not start; it has printed why.
    """
    with _hold_port(config.address) as held:
        host, _ = split_address("address", config.address)
        address = f"{host}:{held.getsockname()[1]}"
        children = [_Child(n, config, address, arguments) for n in range(config.processes)]
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        try:
            lines = [child.start() for child in children]
            print(lines[0], flush=True)
            while not stopped.wait(_RESTART_AFTER_S):
                for child in children:
                    child.restart_if_dead()
        finally:
            for child in children:
                child.terminate()
            for child in children:
                child.wait(config.drain_notice_s + config.drain_grace_s + 5)


class _Child:
    """One server process."""

    def __init__(
        self, number: int, config: ServerConfig, address: str, arguments: Sequence[str]
    ) -> None:
        options = as_options(_share_of(config, number, address))
        self._command = [sys.executable, "-m", "scoring_service", "serve", *options, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start it; returns the line with which it says that it serves."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line.startswith(READY):
            raise ServiceUnavailable("a server process did not start; its message is above")
        return line

    def restart_if_dead(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            return
        _log.error("process %d ended with %d", self._process.pid, self._process.returncode)
        try:
            self.start()
        except ServiceUnavailable as error:
            _log.error("%s; trying again", error)

    def terminate(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


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


def _hold_port(address: str) -> socket.socket:
    """A bound socket that does not listen: it keeps the port while the processes share it."""
    host, port = split_address("address", address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
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
        raise ConfigError(
            f"cannot listen on {address} ({error.strerror}); use another port"
        ) from error
    return held
