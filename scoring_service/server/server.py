"""The gRPC server: binds, serves, drains."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from scoring_service.errors import ConfigError
from scoring_service.ranker.model import RankerModel
from scoring_service.server.calls import Calls
from scoring_service.server.direct import DirectMethod, supports
from scoring_service.server.metrics import Metrics
from scoring_service.server.oip import OpenInference
from scoring_service.server.rpc import SERVICE, ScoringRpcs
from scoring_service.server.security import BearerTokens, server_credentials
from scoring_service.service.config import ServerConfig
from scoring_service.service.reload import Locate, ModelReloader
from scoring_service.service.scoring import ScoringService

_log = logging.getLogger(__name__)
_SPARE_THREADS: Final = 8
"""Beyond the calls that may score: health and reflection answer even when the service is full."""


class ScoringServer:
    """A model served over gRPC.

    Raises:
        ConfigError: an address is in use or cannot be bound, or a file cannot be used.
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
        self._health = health.HealthServicer()
        num_threads = config.max_concurrent_calls + config.max_streams + _SPARE_THREADS
        self._threads = ThreadPoolExecutor(num_threads, "call")
        self._stream_workers = ThreadPoolExecutor(
            config.max_streams + 2 * config.runners(model.scorer.device), "stream"
        )
        self._direct: DirectMethod | None = None
        self._server = self._build(num_threads)
        self.port = _bind(self._server, config.address, server_credentials(config))
        self._scrapes = (
            None if config.metrics_address is None else self.metrics.serve(config.metrics_address)
        )

    @property
    def target(self) -> str:
        """HOST:PORT for clients."""
        return f"{self._config.address.rpartition(':')[0]}:{self.port}"

    @property
    def metrics_port(self) -> int | None:
        """Port that Prometheus may scrape; None without metrics_address."""
        return None if self._scrapes is None else self._scrapes.server_port

    def start(self) -> None:
        """Answer calls; health says SERVING."""
        self._server.start()
        if self._direct is not None:
            self._direct.start()
        if self._reloader is not None:
            self._reloader.start()
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """Say NOT_SERVING, refuse new calls, finish those in flight within the grace, stop."""
        self._health.enter_graceful_shutdown()
        if self._reloader is not None:
            self._reloader.stop()
        time.sleep(self._config.drain_notice_s)
        self._server.stop(self._config.drain_grace_s).wait()
        self._threads.shutdown(wait=False)
        self._stream_workers.shutdown(wait=False)
        self.service.close()
        if self._scrapes is not None:
            self._scrapes.shutdown()
            self._scrapes.server_close()

    def _build(self, num_threads: int) -> grpc.Server:
        path = self._config.token_file
        tokens = None if path is None else BearerTokens(path)
        server = grpc.server(
            self._threads,
            interceptors=[] if tokens is None else [tokens],
            options=_options(self._config),
            maximum_concurrent_rpcs=num_threads,
        )
        calls = Calls(self.service, self.metrics, tokens)
        rpcs = ScoringRpcs(calls, self._stream_workers)
        if supports(server):
            score = f"/{SERVICE}/Score"
            self._direct = DirectMethod(server, score, rpcs.score_directly, max_calls=num_threads)
        else:
            text = "grpcio %s is not made as expected: Score takes a thread per call and costs more"
            _log.warning(text, grpc.__version__)
        server.add_generic_rpc_handlers((rpcs.handlers(), OpenInference(calls).handlers()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # gRPC's default is 1: a second server on the port would silently take half of the calls.
        ("grpc.so_reuseport", int(config.shared_port)),
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
