"""The Open Inference Protocol, spoken with raw messages and, where installed, Triton's client."""

import struct
import subprocess
import sys

import grpc
import pytest
from hypothesis import given, settings, strategies as st

from scoring_service.server.oip import MESSAGES, SERVICE
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from tests.scoring_service.waiting import code_of


@pytest.fixture(scope="module")
def server(tiny_model):
    server = ScoringServer(tiny_model, ServerConfig(address="127.0.0.1:0", max_prompt_bytes=1000))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ask(server):
    with grpc.insecure_channel(server.target) as channel:

        def call(method: str, **fields):
            return channel.unary_unary(
                f"/{SERVICE}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=MESSAGES[f"{method}Response"].FromString,
            )(MESSAGES[f"{method}Request"](**fields), timeout=60)

        yield call


def tensor(shape, **fields):
    return {"name": "text", "datatype": "BYTES", "shape": shape} | fields


def raw(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def test_the_server_and_the_model_are_live_and_ready(ask, tiny_bundle):
    assert ask("ServerLive").live
    assert ask("ServerReady").ready
    assert ask("ModelReady", name="tiny").ready
    assert ask("ModelReady", name="tiny", version=tiny_bundle.manifest.revision).ready
    assert not ask("ModelReady", name="other").ready
    assert ask("ModelMetadata", name="tiny").inputs[0].datatype == "BYTES"
    assert ask("ServerMetadata").name == "lengthwise"


def test_both_encodings_of_text_give_the_scores(ask):
    texts = [b"yes", "漢字 essay".encode(), b"long essay"]
    one = ask("ModelInfer", model_name="tiny", id="7", inputs=[tensor([3])],
              raw_input_contents=[raw(*texts)])  # fmt: skip
    other = ask("ModelInfer", model_name="tiny",
                inputs=[tensor([3, 1], contents={"bytes_contents": texts})],
                outputs=[{"name": "score"}])  # fmt: skip
    assert one.raw_output_contents == other.raw_output_contents
    scores = struct.unpack("<3f", one.raw_output_contents[0])
    assert scores[0] < scores[2]
    assert one.id == "7"
    assert list(one.outputs[0].shape) == [3]
    assert list(other.outputs[0].shape) == [3, 1]


def one_text(*inputs, **fields):
    text = {"raw_input_contents": [raw(b"yes")]}
    return {"model_name": "tiny", "inputs": list(inputs), **text, **fields}


@pytest.mark.parametrize(
    "request_fields",
    [
        {"model_name": "other", "inputs": [tensor([1])]},
        {"model_name": "tiny", "inputs": []},
        {"model_name": "tiny", "inputs": [tensor([2])], "raw_input_contents": [raw(b"yes")]},
        {"model_name": "tiny", "inputs": [tensor([1])], "raw_input_contents": [raw(b"\xff")]},
        {"model_name": "tiny", "inputs": [tensor([1])], "raw_input_contents": [b"\x09\0\0\0x"]},
        {"model_name": "tiny", "inputs": [tensor([1])], "raw_input_contents": [b"\x01"]},
        {"model_name": "tiny", "inputs": [tensor([1])], "raw_input_contents": [raw(b"")]},
        {"model_name": "tiny", "inputs": [tensor([1])], "raw_input_contents": [raw(b"x" * 1001)]},
        one_text(tensor([1], name="prompt")),
        one_text(tensor([1], datatype="FP32")),
        one_text(tensor([1]), tensor([1])),
        one_text(tensor([])),
        one_text(tensor([1, 1, 1])),
        one_text(tensor([-1, -1])),
        one_text(tensor([2, 2]), raw_input_contents=[raw(b"a", b"b", b"c", b"d")]),
        one_text(tensor([2]), raw_input_contents=[raw(b"a"), raw(b"b")]),
        one_text(tensor([1], contents={"bytes_contents": [b"yes"]})),
        one_text(tensor([1]), outputs=[{"name": "label"}]),
        one_text(tensor([1]), outputs=[{"name": "score"}, {"name": "score"}]),
    ],
)
def test_a_request_that_is_wrong_is_an_invalid_argument(ask, request_fields):
    code = code_of(lambda: ask("ModelInfer", **request_fields))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=100), st.integers(-2, 4))
def test_random_raw_contents_get_an_answer_or_invalid_argument(server, content, extent):
    request = MESSAGES["ModelInferRequest"](
        model_name="tiny", inputs=[tensor([extent])], raw_input_contents=[content]
    )
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        code = call.future(request.SerializeToString(), timeout=60).code()
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)


TRITON = """
import sys, numpy, tritonclient.grpc as triton
target, name = sys.argv[1:]
client = triton.InferenceServerClient(target)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(name)
assert client.get_model_metadata(name).outputs[0].datatype == "FP32"
texts = triton.InferInput("text", [2], "BYTES")
texts.set_data_from_numpy(numpy.array([b"yes", b"long essay"], dtype=object))
low, high = client.infer(name, [texts]).as_numpy("score")
assert low < high
"""


def test_tritons_own_client_works_unchanged(server):
    pytest.importorskip("tritonclient.grpc")
    run = subprocess.run(
        [sys.executable, "-c", TRITON, server.target, "tiny"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
