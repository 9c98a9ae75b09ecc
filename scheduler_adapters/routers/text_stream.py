"""Text of a stream of tokens: decoding across legs, and stop strings."""

import re
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, Final

from lengthwise.errors import ConfigError
from scheduler_adapters.routers.openai_bodies import BadRequest

_OF_TEMPLATES: Final = frozenset({"add_generation_prompt", "continue_final_message", "documents"})
"""Arguments of the tokenizer's method that a request may set: they change the text alone."""
_TEMPLATE: Final = "chat_template_kwargs"
_WORD: Final = re.compile(r"[^\W\d]\w*")


class TransformersCodec:
    """The tokenizer of a model folder, or of a hub name, by the transformers library.

    Another class with the same public methods serves a gateway as well; its texts are encoded in
    threads. `stop_token_ids` end every output, and ids below `vocabulary` are known. Raises
    ConfigError: there is no fast tokenizer.
    """

    def __init__(self, model: str) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(model)
            self.backend = self.tokenizer.backend_tokenizer
        except (OSError, ValueError, AttributeError) as error:
            flaw = f"no fast tokenizer in {model!r} ({error})"
            raise ConfigError(f"{flaw}; name a model with a tokenizer.json") from error
        self.backend.no_truncation()
        self.backend.no_padding()
        end = self.tokenizer.eos_token_id
        self.stop_token_ids = [] if end is None else [end]
        self.vocabulary = len(self.tokenizer)
        self._refused = {"messages", *signature(self.tokenizer.apply_chat_template).parameters}
        self._read = {*_WORD.findall(str(self.tokenizer.chat_template)), *_OF_TEMPLATES}

    def encode(self, text: str, *, adds_special_tokens: bool = True) -> list[int]:
        # Of the tokenizer's methods, only those of batches release Python's lock.
        (found,) = self.backend.encode_batch_fast([text], add_special_tokens=adds_special_tokens)
        return list(found.ids)

    def encode_chat(self, messages: Sequence[Any], template: Mapping[str, Any]) -> list[int]:
        """Return the ids of a chat by the model's own template.

        As in vLLM, a variable that the template does not read has no effect. Raises BadRequest: the
        template refuses the messages, or an argument is one of the tokenizer.
        """
        for name in template.keys() & self._refused - _OF_TEMPLATES:
            raise BadRequest(_TEMPLATE, f"{name:.80} is of the tokenizer; leave it out")
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages),
                **{"add_generation_prompt": True}
                | {name: template[name] for name in template.keys() & self._read},
                tokenize=False,
            )
        except Exception as error:  # templates raise anything, by what is sent to them
            raise BadRequest(
                _TEMPLATE if template else "messages",
                f"the model's chat template refuses the messages ({error}); correct them",
            ) from error
        return self.encode(text, adds_special_tokens=False)

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
