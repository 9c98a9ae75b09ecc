"""A minimal service of a bundle, for `bench --peer`: what a first version would be.

    python -m benchmarks service --bundle B --peer "python benchmarks/peers/naive.py B"

FP32, the runtime's default session (all cores for every run, spinning), the whole prompt tokenized,
one run per request on gRPC's thread pool.
"""

import os
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

from lengthwise.bundle import ModelBundle
from scoring_service.server.oip import MESSAGES, SERVICE


def main(folder: str) -> None:
    bundle = ModelBundle.load(folder)
    session = ort.InferenceSession(bundle.model_path("fp32"))
    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
    tokenizer.enable_truncation(bundle.manifest.max_prompt_tokens)
    tokenizer.no_padding()

    def score(request: Any, context: grpc.ServicerContext) -> Any:
        (text,) = request.inputs[0].contents.bytes_contents
        ids = np.array([tokenizer.encode(text.decode()).ids], dtype=np.int64)
        (scores,) = session.run(["score"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        return MESSAGES["ModelInferResponse"](raw_output_contents=[struct.pack("<f", scores[0])])

    server = grpc.server(ThreadPoolExecutor(16))
    handler = grpc.unary_unary_rpc_method_handler(
        score,
        MESSAGES["ModelInferRequest"].FromString,
        lambda response: response.SerializeToString(),
    )
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"peer on 127.0.0.1:{port}, process {os.getpid()}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1])
