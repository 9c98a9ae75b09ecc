"""Fixtures that several parts share, and how hypothesis draws its examples.

The same examples in every run, so that a red run is red again. To look for new ones:
`HYPOTHESIS_PROFILE=explore pytest --hypothesis-seed=1 tests/scheduler_adapters/simulator`.
With `unshrunk` a failure is shown as it was found, which takes less time.
"""

import atexit
import logging
import os
import shutil
import signal
import string
import tempfile
import urllib.request
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

# Hugging Face Datasets reads the place of its cache when it is imported.
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp(prefix="lengthwise-datasets-")
atexit.register(shutil.rmtree, os.environ["HF_DATASETS_CACHE"], ignore_errors=True)

# A shell's background job ignores Ctrl-C and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _proxies_end_with_their_test():
    """urllib keeps the opener of its first call, with the proxies of that test."""
    yield
    urllib.request._opener = None  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _log_handlers_end_with_their_test():
    """A command under test logs to the stderr of its test, which is closed afterwards."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


ENVIRONMENT = "LENGTHWISE_DATA"
_DATA_FOLDER = os.environ.pop(ENVIRONMENT, "")
"""The folder of measured data, which only tests marked `data` see."""


@pytest.fixture
def data_folder(request, monkeypatch):
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
"""The tiny ranker's score: the mean weight of a prompt's tokens, others from -0.5 to 0.5."""


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
def write_bundle():
    """`write_tiny_bundle`, for tests that need several."""
    return write_tiny_bundle


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory):
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


TINY_MODEL = """
<ir_version: 9, opset_import: ["": 18]>
tiny (int64[batch, tokens] input_ids, int64[batch, tokens] attention_mask) => (float[batch] score)
<float[{size}] weights = {{{weights}}}, int64[1] tokens_axis = {{1}}, float shift = {{{shift}}}> {{
    token_weight = Gather(weights, input_ids)
    mask = Cast<to: int = 1>(attention_mask)
    kept = Mul(token_weight, mask)
    total = ReduceSum<keepdims: int = 0>(kept, tokens_axis)
    count = ReduceSum<keepdims: int = 0>(mask, tokens_axis)
    mean = Div(total, count)
    score = Add(mean, shift)
}}
"""


def _save_tiny_model(path: Path, vocab: dict[str, int], shift: float) -> None:
    import numpy as np
    import onnx

    weights = np.linspace(-0.5, 0.5, len(vocab), dtype=np.float32)
    for word, weight in WORD_WEIGHTS.items():
        weights[vocab[word]] = weight
    listed = ", ".join(map(repr, weights.tolist()))
    text = TINY_MODEL.format(size=len(vocab), weights=listed, shift=float(shift))
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    onnx.save(model, path)
