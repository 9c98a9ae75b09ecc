"""The gRPC server: bind, serve, drain."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
from grpc_health.v1 import health_pb2

from lengthwise.errors import ConfigError, raised_as
from scoring_service.proto import scoring_pb2
from scoring_service.ranker.model import RankerModel
from scoring_service.ranker.reload import Locate, ModelReloader
from scoring_service.server import oip, security
from scoring_service.server.call_lifecycle import CallLifecycle
from scoring_service.server.health import SERVICE as HEALTH, Health
from scoring_service.server.metrics import Metrics
from scoring_service.server.reflection import PATHS, Reflection
from scoring_service.server.rpc import SERVICE, scoring_methods
from scoring_service.service.config import ServerConfig, split_address
from scoring_service.service.scoring import ScoringService
from scoring_service.transport.connections import end_excess
from scoring_service.transport.direct import Admit, ClientBlocked, DirectMethod, Handle, supports
from scoring_service.transport.limits import Workers
from scoring_service.transport.scrapes import ScrapeEndpoint
from scoring_service.transport.streams import StreamMethod

_log = logging.getLogger(__name__)
_SWEEP_S: Final = 0.25
_MAX_METADATA_BYTES: Final = 8192
_END_S: Final = 0.5
"""Time for cancelled calls and threads to end."""


class ScoringServer:
    """A model served over gRPC. Raises ConfigError for an unusable address, file or grpcio."""

    def __init__(
        self, model: RankerModel, config: ServerConfig, locate: Locate | None = None
    ) -> None:
        """`locate` returns the folder of the present bundle; None turns reloading off."""
        self._config = config
        self.service = ScoringService(model, config)
        self.metrics = Metrics(self.service)
        self._reloader: ModelReloader | None = None
        if locate is not None:
            self._reloader = ModelReloader(
                self.service, locate, self.metrics.count_reload, config.precision
            )
        self.health = Health((SERVICE, oip.SERVICE))
        self._blocked = ClientBlocked.make(
            timeout_s=config.arrival_timeout_s, max_unsent=config.max_arriving_calls
        )
        self._workers = Workers(
            min(config.runners(model.scorer.device), 4),
            max_tasks=config.max_concurrent_calls,
            max_bytes=config.max_waiting_bytes,
        )
        self._server = self._build()
        self.port = _bind(self._server, config.address, security.server_credentials(config))
        self._scrapes: ScrapeEndpoint | None = None
        if config.metrics_address is not None:
            self._scrapes = ScrapeEndpoint(
                *split_address("metrics_address", config.metrics_address),
                self.metrics.page,
                timeout_s=config.arrival_timeout_s,
                may_read=security.scrape_access(config),
            )
        self._stopped = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="sweeper", daemon=True)

    @property
    def target(self) -> str:
        """HOST:PORT for clients."""
        return f"{self._config.address.rpartition(':')[0]}:{self.port}"

    def start(self) -> None:
        """Answer calls, and set health to SERVING."""
        self._server.start()
        for method in self._direct:
            method.start()
        self._sweeper.start()
        if self._reloader is not None:
            self._reloader.start()
        self.health.set_serving(True)

    def stop(self) -> None:
        """Refuse new calls, finish the calls in flight, and stop.

        Takes at most the notice, the grace and about a second, whatever clients do.
        """
        self.health.set_serving(False)
        time.sleep(self._config.drain_notice_s)
        self.health.end_watches()
        ended = self._server.stop(self._config.drain_grace_s)
        self._blocked.unsent.cancel_all()
        if not ended.wait(self._config.drain_grace_s + _END_S):
            _log.error("calls were still open after the grace; they are abandoned")
        self._stopped.set()
        if self._reloader is not None:
            self._reloader.stop(_END_S)
        self._workers.close()
        self.service.reports.close()
        if self._scrapes is not None:
            self._scrapes.close()

    def _build(self) -> grpc.Server:
        config = self._config
        tokens = security.read_tokens(config.token_file)
        # grpcio demands threads, of which no method here starts any.
        server = grpc.server(ThreadPoolExecutor(1), options=_options(config))
        if not supports(server):
            raise ConfigError(
                f"grpcio {grpc.__version__} is not built as this service expects; install 1.85.1, "
                "with which it is tested"
            )
        calls = CallLifecycle(
            self.service, self.metrics, self._workers, tokens, security.report_access(config)
        )
        ours = scoring_methods(self.service)
        theirs = oip.OpenInference(self.service).methods()
        handlers: list[tuple[str, Handle, Admit | None]] = [
            (
                f"/{service}/{name}",
                calls.handler(name, method),
                calls.admission(name, needs_worker=method.max_inline_bytes == 0),
            )
            for service, methods in ((SERVICE, ours), (oip.SERVICE, theirs))
            for name, method in methods.items()
        ]
        # Health without a token: load balancers carry none, and health is no secret.
        handlers.append((f"/{HEALTH}/Check", self.health.check, None))
        reflection = Reflection((scoring_pb2.DESCRIPTOR, oip.FILE, health_pb2.DESCRIPTOR))
        streams: list[tuple[str, Handle, Admit | None]] = [
            *((path, reflection.answer, calls.admission("Reflection")) for path in PATHS),
            (f"/{HEALTH}/Watch", self.health.watch, None),
        ]
        self._direct = [
            *(DirectMethod(server, path, f, self._blocked, admit) for path, f, admit in handlers),
            *(StreamMethod(server, path, f, self._blocked, admit) for path, f, admit in streams),
        ]
        return server

    def _sweep(self) -> None:
        limits = self._config.max_connections, self._config.max_address_connections
        while not self._stopped.wait(_SWEEP_S):
            for blocked in self._blocked:
                blocked.cancel_overdue()
            if num_ended := end_excess(self.port, *limits):
                _log.warning("ended %d silent connections; their limits are reached", num_ended)


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # gRPC's default is 1: a second server on the port would silently take half of the calls.
        ("grpc.so_reuseport", int(config.shared_port)),
        ("grpc.max_concurrent_streams", config.max_connection_calls),
        # Beyond its own limits gRPC refuses everybody: the sweep is to be first.
        ("grpc.max_allowed_incoming_connections", 4 * config.max_connections),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * _MAX_METADATA_BYTES),
        # By default a read takes all that has arrived: up to 90 MB of a connection in a flood.
        ("grpc.experimental.tcp_max_read_buffer_size", 65_536),
        # A connection without a handshake, and one without calls.
        ("grpc.server_handshake_timeout_ms", int(config.arrival_timeout_s * 1e3)),
        ("grpc.max_connection_idle_ms", 300_000),
        # Prompts are small: a window that grows with the bandwidth only buffers unread answers.
        ("grpc.http2.bdp_probe", 0),
        # Clients ping to notice a dead server; the default treats that as abuse.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        # A client whose host is down must not keep its connection.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 5_000),
    ]


def _bind(server: grpc.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    why = (
        f"cannot listen on {address}; it is in use or not an address of this machine: "
        "stop the other server, or use another port (0 takes any free one)"
    )
    with raised_as(ConfigError, why, RuntimeError):
        if credentials is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, credentials))
