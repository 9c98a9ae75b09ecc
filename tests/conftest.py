"""Fixtures that several parts share, and how hypothesis draws its examples.

The same examples in every run, so that a red run is red again. To look for new ones:
`HYPOTHESIS_PROFILE=explore pytest --hypothesis-seed=1 tests/scheduler_adapters/simulator`.
With `unshrunk` a failure is shown as it was found, which takes less time.
"""

from __future__ import annotations

import logging
import os
import signal
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from lengthwise.bundle import FP32, TOKENIZER, Manifest, ModelBundle

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.register_profile(
    "unshrunk", derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# A shell's background job ignores Ctrl-C and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _log_handlers_end_with_their_test() -> Iterator[None]:
    """A command under test logs to the stderr of its test, which is closed afterwards."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


ENVIRONMENT = "LENGTHWISE_DATA"
_DATA_FOLDER = os.environ.pop(ENVIRONMENT, "")
"""The folder of measured data, which only tests marked `data` see."""


@pytest.fixture
def data_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of measured data, for this test also in the environment."""
    if request.node.get_closest_marker("data") is None:
        pytest.fail("a test that reads the data folder is marked `data`")
    if not Path(_DATA_FOLDER or "absent").is_dir():
        pytest.fail(f"${ENVIRONMENT} is {_DATA_FOLDER!r}, which is no folder of measured data")
    monkeypatch.setenv(ENVIRONMENT, _DATA_FOLDER)
    return Path(_DATA_FOLDER)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regen-golden", action="store_true", help="write tests/golden anew; read the diff"
    )


WORD_WEIGHTS = {"yes": -3.0, "no": -2.0, "short": -1.0, "poem": 1.0, "long": 2.0, "essay": 3.0}
"""The tiny ranker's score of a prompt is the mean weight of its tokens; any other token weighs
between -0.5 and 0.5."""


def write_tiny_bundle(folder: Path, *, shift: float = 0.0) -> ModelBundle:
    """A bundle without a neural network; `shift` is added to every score, so revisions differ."""

    def fill(work: Path) -> None:
        vocab = _vocab()
        _tiny_tokenizer(vocab).save(str(work / TOKENIZER))
        _save_tiny_model(work / FP32, vocab, shift)

    manifest = Manifest(
        name="tiny",
        label="output_tokens",
        label_tokenizer="none",
        max_prompt_tokens=32,
        calibration={
            "tiny-llm": {
                "scores": [-1.0, 0.0, 1.0],
                "mean": [10.0, 100.0, 1000.0],
                "quantiles": {"0.5": [8.0, 80.0, 800.0], "0.9": [20.0, 200.0, 2000.0]},
            }
        },
    )
    return ModelBundle.write(folder, manifest, fill)


@pytest.fixture(scope="session")
def write_bundle() -> Callable[..., ModelBundle]:
    """`write_tiny_bundle`, for tests that need several."""
    return write_tiny_bundle


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    return write_tiny_bundle(tmp_path_factory.mktemp("tiny") / "bundle")


def _vocab() -> dict[str, int]:
    characters = string.ascii_lowercase + string.digits + string.punctuation
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORD_WEIGHTS, *characters]
    tokens += [f"##{character}" for character in string.ascii_lowercase + string.digits]
    return {token: number for number, token in enumerate(tokens)}


def _tiny_tokenizer(vocab: dict[str, int]):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return tokenizer


def _save_tiny_model(path: Path, vocab: dict[str, int], shift: float) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.linspace(-0.5, 0.5, len(vocab), dtype=np.float32)
    for word, weight in WORD_WEIGHTS.items():
        weights[vocab[word]] = weight
    constants = [
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(np.array([1], dtype=np.int64), "tokens_axis"),
        numpy_helper.from_array(np.float32(shift), "shift"),
    ]
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["token_weight"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["token_weight", "mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "tokens_axis"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "tokens_axis"], ["count"], keepdims=0),
        helper.make_node("Div", ["total", "count"], ["mean"]),
        helper.make_node("Add", ["mean", "shift"], ["score"]),
    ]
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph(nodes, "tiny", ids, [score], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
