"""The gRPC server: binds, serves, drains."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from lengthwise.errors import ConfigError
from scoring_service.ranker.model import RankerModel
from scoring_service.server import oip, reflection
from scoring_service.server.call_lifecycle import Calls
from scoring_service.server.health import SERVICE as HEALTH
from scoring_service.server.health import Health
from scoring_service.server.metrics import Metrics
from scoring_service.server.rpc import SERVICE, ScoringRpcs
from scoring_service.server.security import (
    BearerTokens,
    report_access,
    scrape_access,
    server_credentials,
)
from scoring_service.service.config import ServerConfig
from scoring_service.service.reload import Locate, ModelReloader
from scoring_service.service.scoring import ScoringService
from scoring_service.transport.blocked_calls import Waiting
from scoring_service.transport.direct import DirectCall, DirectMethod, Handle, Places, supports
from scoring_service.transport.workers import Workers

_log = logging.getLogger(__name__)
_SPARE_THREADS: Final = 4
"""Of those for streams: for the ones that are refused."""
_SWEEP_S: Final = 0.25
_END_S: Final = 0.5
"""How long what has been ended may take to be gone."""


class ScoringServer:
    """A model served over gRPC.

    Raises:
        ConfigError: an address is in use or cannot be bound, a file cannot be used, or this grpcio
            is not made as expected.
    """

    def __init__(
        self, model: RankerModel, config: ServerConfig, locate: Locate | None = None
    ) -> None:
        """`locate` is asked for new versions of the model; None: the model stays."""
        self._config = config
        self.service = ScoringService(model, config)
        self.metrics = Metrics(self.service)
        self._reloader: ModelReloader | None = None
        if locate is not None and config.reload_poll_s is not None:
            count = self.metrics.count_reload
            self._reloader = ModelReloader(self.service, locate, config.reload_poll_s, count)
        self.health = Health((SERVICE, oip.SERVICE))
        self._places = Places.make(
            timeout_s=config.arrival_timeout_s, max_arriving=config.max_arriving_calls
        )
        self._waiting: list[Waiting[Any]] = list(self._places)
        runners = config.runners(model.scorer.device)
        self._workers = Workers(
            min(runners, 4),
            max_tasks=config.max_concurrent_calls,
            max_bytes=config.max_waiting_bytes,
        )
        self._stream_workers = ThreadPoolExecutor(config.max_streams + 2 * runners, "stream")
        self._direct: list[DirectMethod] = []
        self._server = self._build()
        self.port = _bind(self._server, config.address, server_credentials(config))
        address = config.metrics_address
        may_read, timeout_s = scrape_access(config), config.arrival_timeout_s
        self._scrapes = (
            None if address is None else self.metrics.serve(address, timeout_s, may_read)
        )
        self._stopped = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="sweeper", daemon=True)

    @property
    def target(self) -> str:
        """HOST:PORT for clients."""
        return f"{self._config.address.rpartition(':')[0]}:{self.port}"

    @property
    def metrics_port(self) -> int | None:
        """Port that Prometheus may scrape; None without metrics_address."""
        return None if self._scrapes is None else self._scrapes.port

    def start(self) -> None:
        """Answer calls; health says SERVING."""
        self._server.start()
        for method in self._direct:
            method.start()
        self._sweeper.start()
        if self._reloader is not None:
            self._reloader.start()
        self.health.set_serving(True)

    def stop(self) -> None:
        """Say NOT_SERVING, refuse new calls, finish those in flight within the grace, stop.

        Takes no longer than the notice, the grace and about a second, whatever clients do.
        """
        self.health.set_serving(False)
        time.sleep(self._config.drain_notice_s)
        self.health.close()
        ended = self._server.stop(self._config.drain_grace_s)
        self._places.arriving.clear()
        if not ended.wait(self._config.drain_grace_s + _END_S):
            _log.error("calls were still open after the grace; they are left")
        self._stopped.set()
        if self._reloader is not None:
            self._reloader.stop(_END_S)
        for threads in (self._threads, self._stream_workers):
            threads.shutdown(wait=False, cancel_futures=True)
        self._workers.close()
        self.service.close()
        if self._scrapes is not None:
            self._scrapes.close()

    def _build(self) -> grpc.Server:
        config = self._config
        tokens = None if config.token_file is None else BearerTokens(config.token_file)
        num_threads = config.max_streams + _SPARE_THREADS
        if config.reflection:
            num_threads += reflection.MAX_CALLS
        self._threads = ThreadPoolExecutor(num_threads, "call")
        server = grpc.server(
            self._threads,
            interceptors=[] if tokens is None else [tokens],
            options=_options(config),
            maximum_concurrent_rpcs=num_threads,
        )
        if not supports(server):
            raise ConfigError(
                f"grpcio {grpc.__version__} is not built as this service expects; install 1.85.1, "
                "with which it is tested"
            )
        calls = Calls(self.service, self.metrics, self._workers, tokens, report_access(config))
        rpcs = ScoringRpcs(calls, self._stream_workers, self._places)
        self._waiting.append(rpcs.silent)
        self._serve_methods(server, SERVICE, rpcs.methods(), calls.gate)
        self._serve_methods(server, oip.SERVICE, oip.OpenInference(calls).methods(), calls.gate)
        self._serve_methods(server, HEALTH, self.health.methods(), lambda name: None)
        handlers = [rpcs.handlers()]
        if config.reflection:
            described = reflection.Reflection((SERVICE, oip.SERVICE, HEALTH), config.stream_idle_s)
            self._waiting.append(described.waiting)
            handlers.append(described.handlers())
        server.add_generic_rpc_handlers(handlers)
        return server

    def _serve_methods(
        self,
        server: grpc.Server,
        service: str,
        methods: Mapping[str, Handle],
        gate: Callable[[str], Callable[[DirectCall], bool] | None],
    ) -> None:
        for name, handle in methods.items():
            full_name = f"/{service}/{name}"
            self._direct.append(DirectMethod(server, full_name, handle, self._places, gate(name)))

    def _sweep(self) -> None:
        while not self._stopped.wait(_SWEEP_S):
            for waiting in self._waiting:
                waiting.sweep()


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # gRPC's default is 1: a second server on the port would silently take half of the calls.
        ("grpc.so_reuseport", int(config.shared_port)),
        ("grpc.max_concurrent_streams", config.max_connection_calls),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        # A connection that says nothing, and one on which nothing is asked.
        ("grpc.server_handshake_timeout_ms", int(config.arrival_timeout_s * 1e3)),
        ("grpc.max_connection_idle_ms", 300_000),
        # Prompts are small: a window that grows with the bandwidth only buffers what is not read.
        ("grpc.http2.bdp_probe", 0),
        # Clients ping to notice a dead server; the default would take that for abuse.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        # A client whose host is gone must not hold its place.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 5_000),
    ]


def _bind(server: grpc.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        if credentials is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {address}; it is in use or not an address of this machine: "
            "stop the other server, or use another port (0 takes any free one)"
        ) from error
