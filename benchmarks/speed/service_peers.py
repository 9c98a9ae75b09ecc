"""Servers to compare: ours, and any other of the Open Inference Protocol."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lengthwise.child_processes import started
from scoring_service.client import ScoringClient
from scoring_service.client.channel import PLAINTEXT
from scoring_service.server.health import SERVICE as HEALTH
from scoring_service.server.oip import INPUT, MESSAGES, SERVICE as OIP_SERVICE

Ask = Callable[[str], object]
MODEL_NAME: Final = "ranker"


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    pid: int
    target: str

    def client(self) -> Ask:
        """A new connection, as a function that scores one prompt."""
        return ScoringClient(self.target, timeout_s=60.0).score

    def empty_client(self) -> Ask:
        """A new connection, as a function that makes a call without content."""
        call = PLAINTEXT.open(self.target).unary_unary(f"/{HEALTH}/Check")
        return lambda _: call(b"", timeout=60.0)


class OpenInferencePeer(Peer):
    """A server that speaks the Open Inference Protocol."""

    def client(self) -> Ask:
        call = PLAINTEXT.open(self.target).unary_unary(
            f"/{OIP_SERVICE}/ModelInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES["ModelInferResponse"].FromString,
        )

        def ask(prompt: str) -> object:
            tensor = {"name": INPUT, "datatype": "BYTES", "shape": [1]}
            contents = {"bytes_contents": [prompt.encode()]}
            request = MESSAGES["ModelInferRequest"](
                model_name=MODEL_NAME, inputs=[{**tensor, "contents": contents}]
            )
            return call(request, timeout=60.0)

        return ask


@contextmanager
def ours(bundle: Path, precision: str) -> Iterator[Peer]:
    """Our service, without its cache: every prompt is computed."""
    command = [sys.executable, "-m", "scoring_service", "serve", "--bundle", str(bundle)]
    command += ["--address", "127.0.0.1:0", "--precision", precision, "--cache_entries", "0"]
    with started(command, ready="serving ") as (process, line):
        yield Peer("ours", process.pid, line.split()[-1])


@contextmanager
def other(command: str) -> Iterator[Peer]:
    """A server of the Open Inference Protocol, started by a command.

    The command prints one line, `peer on HOST:PORT, process PID`, as soon as the server answers.
    """
    with started(shlex.split(command), ready="peer on ", timeout_s=300) as (_, line):
        address, pid = line.removeprefix("peer on ").split(", process ")
        yield OpenInferencePeer("other", int(pid), address)
