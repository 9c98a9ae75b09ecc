"""Chat templates of the main families, and a tokenizer with their special tokens, for tests."""

from pathlib import Path
from typing import Any

START = "{% if add_generation_prompt %}"
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant."
    "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>"
    "{% if m['role'] == 'tool' %}user\n<tool_response>\n{{ m['content'] }}\n</tool_response>"
    "{% else %}{{ m['role'] }}\n{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    f"{START}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set system, messages = messages[0]['content'] + '\n\n', messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "[INST] {% if loop.first and system is defined %}{{ system }}{% endif %}{{ m['content'] }}"
    "[/INST]{% else %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
PHI = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    f"{START}<|assistant|>\n{{% endif %}}"
)
_FOLDER = Path(__file__).parent / "templates"
WITH_TOOLS = {path.stem: path.read_text() for path in sorted(_FOLDER.glob("*.jinja"))}
"""Templates that write tools, calls and results; each starts an answer at the end."""
TEMPLATES = {
    "chatml": CHATML,
    "llama-3": WITH_TOOLS["llama-3"],
    "mistral": MISTRAL,
    "gemma": WITH_TOOLS["gemma"],
    "phi": PHI,
}
_SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|user|>"),
    *("<|system|>", "<|assistant|>", "<|end|>", "<|image_pad|>"),
)


def byte_tokenizer(template: str | None, vocabulary: int = 512) -> Any:
    """Return a tokenizer with a token per byte, the special tokens, and more up to `vocabulary`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=own,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=[*_SPECIAL],
    )
    fast.add_tokens([f"more{number}" for number in range(vocabulary - len(fast))])
    fast.chat_template = template
    return fast
