"""A minimal service as a peer of the bench: `python -m scoring_service.bench.naive BUNDLE`.

FP32, the runtime's default session (all cores for every run, spinning), the whole prompt tokenized,
one run per request on gRPC's thread pool.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

from lengthwise.bundle import ModelBundle
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.server.rpc import SERVICE


def main(folder: str) -> None:
    """Serve `Score` of the bundle in `folder` until killed."""
    bundle = ModelBundle.load(folder)
    session = ort.InferenceSession(bundle.model_path("fp32"))
    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
    tokenizer.enable_truncation(bundle.manifest.max_prompt_tokens)
    tokenizer.no_padding()

    def score(request: pb.ScoreRequest, context: grpc.ServicerContext) -> pb.ScoreResponse:
        ids = np.array([tokenizer.encode(request.prompt).ids], dtype=np.int64)
        (scores,) = session.run(["score"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        return pb.ScoreResponse(scored=pb.ScoredPrompt(score=scores[0]))

    server = grpc.server(ThreadPoolExecutor(16))
    handler = grpc.unary_unary_rpc_method_handler(
        score, pb.ScoreRequest.FromString, pb.ScoreResponse.SerializeToString
    )
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"Score": handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"naive on 127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1])
