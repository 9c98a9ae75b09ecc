import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.routers.openai_bodies import BadRequest
from scheduler_adapters.routers.text_stream import StopStrings, TransformersCodec


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.text("ab", min_size=1, max_size=3))
def test_any_pieces_give_the_text_before_the_stop_string(pieces, stop):
    text, stream, found = "".join(pieces), StopStrings([stop]), ""
    for piece in pieces:
        if not stream.has_stopped:
            found += stream.step(piece)
    assert found + stream.flush() == text.partition(stop)[0]
    assert stream.has_stopped is (stop in text)


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    vocabulary = {char: n for n, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(False), ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="!")
    shown = "{{ m.content if m.content else raise_exception('no content') }}"
    made.chat_template = f"{{% for m in messages %}}{shown}{{% endfor %}}>{{{{ tail }}}}"
    made.save_pretrained(folder := tmp_path_factory.mktemp("codec"))
    return TransformersCodec(str(folder))


def test_a_model_folder_encodes_and_decodes(codec):
    tokens = codec.encode("né€")
    assert codec.encode_chat([{"role": "user", "content": "né€"}], {}) == tokens + codec.encode(">")
    assert list(map(codec.decoder(), tokens)) == ["n", "", "é", "", "", "€"]
    assert codec.stop_token_ids == codec.encode("!")


def test_a_request_sets_what_its_template_reads_and_no_more(codec):
    chat = [{"role": "user", "content": "a"}]
    assert codec.encode_chat(chat, {"tail": "b", "add_generation_prompt": False}) == codec.encode(
        "a>b"
    )
    assert codec.encode_chat(chat, {"unread": 1}) == codec.encode_chat(chat, {})
    for name in ("return_tensors", "chat_template", "tokenize", "messages", "padding"):
        with pytest.raises(BadRequest, match=f"{name} is of the tokenizer"):
            codec.encode_chat(chat, {name: "pt"})
    with pytest.raises(BadRequest, match=r"template refuses the messages \(no content\)"):
        codec.encode_chat([{"role": "user", "content": ""}], {})
