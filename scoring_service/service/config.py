"""Settings of the service, with the defaults for code and command line."""

import os
from typing import Literal

from lengthwise.errors import ConfigError, require
from lengthwise.settings import Count, Natural, NonNegative, PositiveFinite, settings


@settings
class ServerConfig:
    """Settings of a server."""

    address: str = "127.0.0.1:50051"
    """HOST:PORT to listen on; port 0 takes any free one."""
    precision: Literal["auto", "fp32", "int8"] = "auto"
    """fp32, int8 or auto: fp32 on a GPU with onnxruntime-gpu, else int8 if the bundle has it."""
    shared_port: bool = False
    """Let other services of this user listen on the same port, each with its own num_runners."""
    num_runners: Count | None = None
    """One-thread model runs at once; null: one per available core, or two on a GPU."""
    max_prompt_bytes: Count = 1_048_576
    """Longest accepted prompt, UTF-8 bytes; the model reads only the start of a long prompt."""
    max_batch_prompts: Count = 64
    """Most prompts in one ScoreBatch."""
    max_message_bytes: Count = 4_194_304
    """Largest request message, bytes; the transport refuses larger ones."""
    max_concurrent_calls: Count = 64
    """Calls that are scored or wait to be read at once. Of this limit and of those on prompts and
    bytes each token, without tokens each address, that waits has an equal part."""
    max_connections: Count = 512
    """Connections at once; further ones are closed, and from seven eighths on the silent ones."""
    max_address_connections: Count = 32
    """Connections of one address (IPv6: network) to one process; beyond, the silent ones end."""
    max_connection_calls: Count = 1024
    """Open calls on one connection; the client's library holds further calls back."""
    max_arriving_calls: Count = 256
    """Calls whose message has not arrived; a new call then ends the oldest of them."""
    max_waiting_bytes: Count = 33_554_432
    """Bytes of arrived requests that wait to be read; further requests are refused."""
    arrival_timeout_s: PositiveFinite = 5.0
    """Time limit for a handshake, a call's message, a scrape and reading an answer, seconds."""
    max_queued_prompts: Count = 1024
    """Prompts that wait for a core; further prompts are refused whatever their deadline."""
    cache_entries: Natural = 65_536
    """Scores kept in the cache, about 200 bytes each; 0 turns it off."""
    report_log: str | None = None
    """JSONL file to append reported prompts and lengths to, for retraining; null keeps none."""
    max_report_log_bytes: Count = 268_435_456
    """Bytes of that file and the older one, FILE.1, together; still older reports are dropped."""
    metrics_address: str | None = None
    """HOST:PORT for Prometheus, over plain HTTP; null: no metrics."""
    metrics_token_file: str | None = None
    """Bearer tokens accepted for scrapes, one per line; null accepts every scrape."""
    drain_notice_s: NonNegative = 0.0
    """On SIGTERM: seconds to serve on while health reports NOT_SERVING, for load balancers."""
    drain_grace_s: NonNegative = 10.0
    """Then: time for the calls in flight to finish, seconds."""
    tls_certificate_file: str | None = None
    """PEM certificate chain of the server; with tls_key_file it turns TLS on."""
    tls_key_file: str | None = None
    """PEM private key of that certificate."""
    tls_client_ca_file: str | None = None
    """PEM certificates that sign clients' certificates; makes a client certificate mandatory."""
    token_file: str | None = None
    """Bearer tokens that are accepted, one per line; null accepts every call."""
    report_token_file: str | None = None
    """Bearer tokens accepted for reports only; null refuses reports where token_file is set."""
    allow_plaintext: bool = False
    """Serve other machines without TLS, e.g. inside an encrypting mesh."""

    def __post_init__(self) -> None:
        split_address("address", self.address)
        if self.metrics_address is not None:
            split_address("metrics_address", self.metrics_address)
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ConfigError("tls_certificate_file and tls_key_file belong together; set both")
        if self.tls_client_ca_file is not None and self.tls_certificate_file is None:
            raise ConfigError("tls_client_ca_file needs TLS; set tls_certificate_file too")

    def runners(self, device: str = "cpu") -> int:
        """Model runs at once, on the cpu or the gpu."""
        # One computes while the next batch fills: 1.3 times the throughput of one on an H100.
        # Sixteen gave .57 of the throughput of two: each of them ran a small batch of its own.
        return self.num_runners or (2 if device == "gpu" else len(os.sched_getaffinity(0)))


def split_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises ConfigError if it is not of that form."""
    host, _, port = address.rpartition(":")
    is_pair = bool(host) and port.isdecimal() and int(port) <= 65535
    require(name, repr(address), is_pair, "HOST:PORT, e.g. 127.0.0.1:50051")
    return host, int(port)
