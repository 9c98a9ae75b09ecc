from hypothesis import given, strategies as st

from scheduler_adapters.routers.text_stream import StopStrings, TransformersCodec


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.text("ab", min_size=1, max_size=3))
def test_any_pieces_give_the_text_before_the_stop_string(pieces, stop):
    text, stream, found = "".join(pieces), StopStrings([stop]), ""
    for piece in pieces:
        if not stream.has_stopped:
            found += stream.step(piece)
    assert found + stream.flush() == text.partition(stop)[0]
    assert stream.has_stopped is (stop in text)


def test_a_model_folder_encodes_and_decodes(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    vocabulary = {char: n for n, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(False), ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="!")
    made.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}>"
    made.save_pretrained(tmp_path)
    codec = TransformersCodec(str(tmp_path))
    tokens = codec.encode("né€")
    assert codec.encode_chat([{"role": "user", "content": "né€"}]) == tokens + codec.encode(">")
    assert list(map(codec.decoder(), tokens)) == ["n", "", "é", "", "", "€"]
    assert codec.stop_token_ids == codec.encode("!")
