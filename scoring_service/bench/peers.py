"""Servers to compare: ours, a naive one, and MLServer with the same model file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from lengthwise.bundle import ModelBundle
from lengthwise.errors import ServiceUnavailable
from scoring_service.bench.load import Ask
from scoring_service.bench.processes import free_port, started
from scoring_service.client import ScoringClient
from scoring_service.server.oip import INPUT, MESSAGES, OUTPUT
from scoring_service.server.oip import SERVICE as OIP_SERVICE

MODEL_NAME: Final = "ranker"
MLSERVER_PACKAGES: Final = ("mlserver==1.7.1", "onnxruntime", "tokenizers")


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server."""

    name: str
    pid: int
    target: str

    def client(self) -> Ask:
        """A new connection, as a function that scores one prompt."""
        return ScoringClient(self.target, timeout_s=60.0).score


@contextmanager
def ours(bundle: Path, precision: str, *options: str) -> Iterator[Peer]:
    """Our service, without its cache: every prompt is computed."""
    command = [sys.executable, "-m", "scoring_service", "serve", "--bundle", str(bundle)]
    command += ["--address", "127.0.0.1:0", "--precision", precision, "--cache_entries", "0"]
    with started([*command, *options], ready="serving ") as (process, line):
        yield Peer("ours", process.pid, line.split()[-1])


@contextmanager
def naive(bundle: Path) -> Iterator[Peer]:
    """The naive service, FP32."""
    command = [sys.executable, "-m", "scoring_service.bench.naive", str(bundle)]
    with started(command, ready="naive on ") as (process, line):
        yield Peer("naive", process.pid, line.split()[-1])


class OpenInferencePeer(Peer):
    """A server that speaks the Open Inference Protocol."""

    def client(self) -> Ask:
        call = grpc.insecure_channel(self.target).unary_unary(
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


_MLSERVER_RUNTIME: Final = f'''
import numpy as np
import onnxruntime as ort
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceResponse, ResponseOutput
from tokenizers import Tokenizer


class Ranker(MLModel):
    async def load(self):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        given = self.settings.parameters.extra
        self.session = ort.InferenceSession(given["model"], options)
        self.tokenizer = Tokenizer.from_file(given["tokenizer"])
        self.tokenizer.enable_truncation(given["max_tokens"])
        self.tokenizer.enable_padding()
        return True

    async def predict(self, payload):
        encoded = self.tokenizer.encode_batch(StringCodec.decode_input(payload.inputs[0]))
        feed = {{
            "input_ids": np.array([e.ids for e in encoded], dtype=np.int64),
            "attention_mask": np.array([e.attention_mask for e in encoded], dtype=np.int64),
        }}
        scores = self.session.run(["score"], feed)[0].tolist()
        output = ResponseOutput(
            name="{OUTPUT}", shape=[len(scores)], datatype="FP32", data=scores
        )
        return InferenceResponse(model_name=self.name, outputs=[output])
'''


@contextmanager
def mlserver(bundle: Path, precision: str, python: Path, *, batching: bool) -> Iterator[Peer]:
    """MLServer with the same model file: "mlserver" batches requests, "mlserver_best" does not.

    Without batches it is fastest on a CPU.
    """
    loaded = ModelBundle.load(bundle)
    port = free_port()
    extra = {
        "model": str(loaded.model_path(precision).resolve()),
        "tokenizer": str(loaded.tokenizer_path.resolve()),
        "max_tokens": loaded.manifest.max_prompt_tokens,
    }
    settings: dict[str, Any] = {"name": MODEL_NAME, "implementation": "ranker.Ranker"}
    settings["parameters"] = {"extra": extra}
    if batching:
        settings |= {"max_batch_size": 32, "max_batch_time": 0.002}
    server = {
        "host": "127.0.0.1",
        "grpc_port": port,
        "http_port": free_port(),
        "metrics_port": free_port(),
        "parallel_workers": 0,
        "debug": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ranker.py").write_text(_MLSERVER_RUNTIME)
        (Path(folder) / "model-settings.json").write_text(json.dumps(settings))
        (Path(folder) / "settings.json").write_text(json.dumps(server))
        process = subprocess.Popen(
            [str(python.parent / "mlserver"), "start", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        try:
            name = "mlserver" if batching else "mlserver_best"
            peer = OpenInferencePeer(name, process.pid, f"127.0.0.1:{port}")
            _wait_until_it_answers(peer, process)
            yield peer
        finally:
            process.terminate()
            process.wait(30)


def mlserver_python() -> Path:
    """An interpreter that has MLServer: $LENGTHWISE_MLSERVER_PYTHON, or one made now.

    MLServer wants an older protobuf than we do, so it lives in an environment of its own.

    Raises:
        ServiceUnavailable: it cannot be installed.
    """
    given = os.environ.get("LENGTHWISE_MLSERVER_PYTHON")
    if given:
        return Path(given)
    folder = Path(tempfile.gettempdir()) / "lengthwise-mlserver"
    python = folder / "bin" / "python"
    if not (folder / "bin" / "mlserver").exists():
        venv.create(folder, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-q", *MLSERVER_PACKAGES]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ServiceUnavailable(f"MLServer cannot be installed ({last}); use --mlserver false")
    return python


def _wait_until_it_answers(peer: Peer, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 60
    ask = peer.client()
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            ask("hello")
            return
        except grpc.RpcError:
            time.sleep(0.25)
    raise ServiceUnavailable("MLServer did not become ready in 60 s; use --mlserver false")
