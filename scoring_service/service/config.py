"""Settings of the service: the one source of defaults, for code and command line."""

import math
import os
from dataclasses import dataclass, fields

from lengthwise.errors import ConfigError, at_least, require

PRECISIONS = ("auto", "fp32", "int8")
_GPU_RUNNERS = 2
"""On an H100 with 16 cores two gave 1.3 times the throughput of one; sixteen, .57 of two's, each
with a small batch of its own."""
_AT_LEAST = {
    "processes": 1,
    "num_runners": 1,
    "cache_entries": 0,
    "drain_notice_s": 0,
    "drain_grace_s": 0,
}
"""Of settings other than max_*, which are all at least 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """Settings of a server."""

    address: str = "127.0.0.1:50051"
    """HOST:PORT to listen on; port 0 takes any free one."""
    precision: str = "auto"
    """Which model of the bundle: fp32, int8, or auto (fp32 on a GPU, which needs onnxruntime-gpu,
    else int8 where the bundle has it)."""
    processes: int = 1
    """Server processes that share the port and the cores; more help beyond about 8 cores."""
    shared_port: bool = False
    """Let other processes of this user listen on the same port; `processes` sets it."""
    num_runners: int | None = None
    """One-thread model runs that may go on at once; null: one per available core, or two where
    the model runs on a GPU: while one computes, the next batch gathers."""
    max_prompt_bytes: int = 1_048_576
    """Longer prompts are refused, UTF-8 bytes. Long ones cost little: only their start is read, at
    most 64 characters for each token that the model reads, and no less than 4,096."""
    max_batch_prompts: int = 64
    """Most prompts in one ScoreBatch."""
    max_message_bytes: int = 4_194_304
    """Larger request messages are refused by the transport, bytes."""
    max_concurrent_calls: int = 64
    """Calls that are being scored at once, or wait to be read; more are refused at once."""
    max_token_calls: int = 48
    """Those of one token where token_file holds several, so that the others find room."""
    max_connections: int = 512
    """Connections at once; more are closed at once."""
    max_connection_calls: int = 1024
    """Calls open at once on one connection; the client's library holds more back. Those that it has
    cancelled count until the service has seen it, and in a burst that is late."""
    max_arriving_calls: int = 256
    """Calls whose message has not come; the one that waits longest gives way to a new one. A burst
    on a busy machine has many such; each may hold a message that is not yet whole."""
    max_waiting_bytes: int = 33_554_432
    """Of requests that have come and wait to be read; more are refused."""
    arrival_timeout_s: float = 5.0
    """How long a connection's handshake, a call's message, a scrape's request, and fetching an
    answer may take, seconds."""
    max_queued_prompts: int = 1024
    """Prompts that may wait for a core; more are refused whatever their deadline."""
    default_deadline_s: float = 10.0
    """For calls that name no deadline, seconds."""
    cache_entries: int = 65_536
    """Scores remembered, about 200 bytes each; 0 remembers none."""
    max_streams: int = 8
    """Streams open at once; each holds two threads. Where all are taken and a new one comes, the
    one that was silent longest is ended."""
    max_token_streams: int = 6
    """Those of one token where token_file holds several, so that the others find room."""
    max_stream_prompts: int = 64
    """Prompts of a stream that are read but not answered; beyond them the client has to wait."""
    stream_idle_s: float = 300.0
    """A stream without a request or an answer for so long is ended, seconds."""
    reload_poll_s: float | None = 5.0
    """How often to look for a new version of the bundle, seconds; null: never."""
    report_log: str | None = None
    """JSONL file to append reported prompts and lengths to, for retraining; null keeps none."""
    max_report_log_bytes: int = 268_435_456
    """Of that file and the older one, FILE.1, together; what is older still is dropped."""
    metrics_address: str | None = None
    """HOST:PORT where Prometheus may scrape, over plain HTTP; null: nowhere."""
    metrics_token_file: str | None = None
    """Bearer tokens that may scrape, one per line; null: whoever reaches that address."""
    drain_notice_s: float = 0.0
    """On SIGTERM: how long to serve on while health says NOT_SERVING, so that load balancers
    notice, seconds."""
    drain_grace_s: float = 10.0
    """Then: how long calls in flight may take to finish, seconds."""
    tls_certificate_file: str | None = None
    """PEM certificate chain of the server; with tls_key_file it turns TLS on."""
    tls_key_file: str | None = None
    """PEM private key of that certificate."""
    tls_client_ca_file: str | None = None
    """PEM certificates of those who may sign clients' certificates; makes clients show one."""
    token_file: str | None = None
    """Bearer tokens that are accepted, one per line; null accepts every caller."""
    report_token_file: str | None = None
    """Bearer tokens that may report lengths, and nothing else; null: nobody may where token_file is
    set, everybody where it is not."""
    reflection: bool = False
    """Answer server reflection, which lists services and messages to grpcurl and its like."""
    allow_plaintext: bool = False
    """Serve other machines without TLS, e.g. inside an encrypting mesh."""

    def __post_init__(self) -> None:
        is_known = self.precision in PRECISIONS
        require("precision", repr(self.precision), is_known, f"one of {', '.join(PRECISIONS)}")
        limits = {f.name: 1 for f in fields(self) if f.name.startswith("max_")} | _AT_LEAST
        for name, least in limits.items():
            at_least(name, getattr(self, name), least)
        poll_s, deadline_s = self.reload_poll_s, self.default_deadline_s
        require("reload_poll_s", poll_s, poll_s is None or poll_s > 0, "more than 0, or null")
        require("default_deadline_s", deadline_s, deadline_s > 0, "more than 0")
        for name in ("arrival_timeout_s", "stream_idle_s"):
            seconds = getattr(self, name)
            require(name, seconds, 0 < seconds < math.inf, "a time, more than 0")
        split_address("address", self.address)
        if self.metrics_address is not None:
            split_address("metrics_address", self.metrics_address)
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ConfigError("tls_certificate_file and tls_key_file belong together; set both")
        if self.tls_client_ca_file is not None and self.tls_certificate_file is None:
            raise ConfigError("tls_client_ca_file needs TLS; set tls_certificate_file too")

    def runners(self, device: str = "cpu") -> int:
        """Model runs that may go on at once, on the cpu or the gpu."""
        return self.num_runners or (
            _GPU_RUNNERS if device == "gpu" else len(os.sched_getaffinity(0))
        )


def split_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises ConfigError if it is not of that form."""
    host, _, port = address.rpartition(":")
    is_pair = bool(host) and port.isdecimal() and int(port) <= 65535
    require(name, repr(address), is_pair, "HOST:PORT, e.g. 127.0.0.1:50051")
    return host, int(port)
