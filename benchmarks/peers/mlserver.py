"""MLServer with a bundle's model file, for `bench --peer`: the same scores over the same protocol.

    python -m benchmarks service --bundle B --peer "python benchmarks/peers/mlserver.py B"

With --batching it computes batches of 32 within 2 ms; without, it is fastest on a CPU. MLServer
needs an older protobuf than we do, so that it is installed into an environment of its own.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import grpc

from benchmarks.speed.service_peers import MODEL_NAME, OpenInferencePeer
from lengthwise.bundle import ModelBundle
from lengthwise.child_processes import end_processes, free_port

PACKAGES = ("mlserver==1.7.1", "onnxruntime", "tokenizers")
RUNTIME = """\
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
        feed = {
            "input_ids": np.array([e.ids for e in encoded], dtype=np.int64),
            "attention_mask": np.array([e.attention_mask for e in encoded], dtype=np.int64),
        }
        scores = self.session.run(["score"], feed)[0].tolist()
        output = ResponseOutput(
            name="score", shape=[len(scores)], datatype="FP32", data=scores
        )
        return InferenceResponse(model_name=self.name, outputs=[output])
"""


def installed() -> Path:
    """Return MLServer's command, installed now if need be."""
    folder = Path(tempfile.gettempdir()) / "lengthwise-mlserver"
    command = folder / "bin" / "mlserver"
    if not command.exists():
        venv.create(folder, clear=True, with_pip=True)
        install = [folder / "bin" / "python", "-m", "pip", "install", "-q", *PACKAGES]
        subprocess.run(install, check=True)
    return command


def write_settings(folder: Path, bundle: ModelBundle, precision: str, *, batching: bool) -> int:
    """Write the model, its settings and those of the server; returns its gRPC port."""
    extra = {
        "model": str(bundle.model_path(precision).resolve()),
        "tokenizer": str(bundle.tokenizer_path.resolve()),
        "max_tokens": bundle.manifest.max_prompt_tokens,
    }
    batches = {"max_batch_size": 32, "max_batch_time": 0.002} if batching else {}
    model = {"name": MODEL_NAME, "implementation": "ranker.Ranker", **batches}
    port = free_port()
    server = {"host": "127.0.0.1", "grpc_port": port, "parallel_workers": 0, "debug": False}
    server |= {"http_port": free_port(), "metrics_port": free_port()}
    (folder / "ranker.py").write_text(RUNTIME)
    settings = {**model, "parameters": {"extra": extra}}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    (folder / "settings.json").write_text(json.dumps(server))
    return port


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("bundle", help="folder of the bundle")
    parser.add_argument("--precision", default="int8", help="fp32 or int8 (int8)")
    parser.add_argument("--batching", action="store_true", help="batches of 32 within 2 ms")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory() as name:
        bundle, folder = ModelBundle.load(given.bundle), Path(name)
        port = write_settings(folder, bundle, given.precision, batching=given.batching)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([installed(), "start", folder], cwd=folder, **quiet)
        try:
            peer = OpenInferencePeer("mlserver", process.pid, f"127.0.0.1:{port}")
            ask = peer.client()
            while process.poll() is None:
                try:
                    ask("hello")
                    print(f"peer on {peer.target}, process {peer.pid}", flush=True)
                    break
                except grpc.RpcError:
                    time.sleep(0.25)
            process.wait()
        finally:
            end_processes([process], 30)


if __name__ == "__main__":
    main()
