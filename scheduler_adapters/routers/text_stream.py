"""Text of a stream of tokens: decoding across legs, and stop strings."""

from collections.abc import Callable, Sequence
from typing import Any

from lengthwise.errors import ConfigError


class TransformersCodec:
    """The tokenizer of a model folder, or of a hub name, by the transformers library.

    Another class with the same public methods serves a gateway as well. `stop_token_ids` end every
    output. Raises ConfigError: there is no fast tokenizer.
    """

    def __init__(self, model: str) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(model)
            self.backend = self.tokenizer.backend_tokenizer
        except (OSError, ValueError, AttributeError) as error:
            flaw = f"no fast tokenizer in {model!r} ({error})"
            raise ConfigError(f"{flaw}; name a model with a tokenizer.json") from error
        end = self.tokenizer.eos_token_id
        self.stop_token_ids = [] if end is None else [end]

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text))

    def encode_chat(self, messages: Sequence[Any], **template: Any) -> list[int]:
        settings = {"add_generation_prompt": True, "return_dict": False} | template
        return list(self.tokenizer.apply_chat_template(list(messages), **settings))

    def decoder(self) -> Callable[[int], str]:
        """Return a decoder for one stream: a token in, the text that it completes out."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        return lambda token: stream.step(self.backend, token) or ""


class StopStrings:
    """Holds back text that may begin a stop string, and ends before the first one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held, self.has_stopped = stops, "", False

    def step(self, text: str) -> str:
        """Return the text that may be sent now."""
        text = self.held + text
        ends = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        self.has_stopped = bool(ends)
        begun = [at for at in range(len(text)) if any(s.startswith(text[at:]) for s in self.stops)]
        end = min([*ends, *begun, len(text)])
        self.held = "" if ends else text[end:]
        return text[: min(ends, default=end)]

    def flush(self) -> str:
        """Return what was held back, at the end of a text."""
        text, self.held = self.held, ""
        return text
