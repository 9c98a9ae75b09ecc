"""Chat templates of five families, and a tokenizer with their special tokens, for tests."""

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
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    f"{START}<|start_header_id|>assistant<|end_header_id|>\n\n{{% endif %}}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set system, messages = messages[0]['content'] + '\n\n', messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "[INST] {% if loop.first and system is defined %}{{ system }}{% endif %}{{ m['content'] }}"
    "[/INST]{% else %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}<start_of_turn>"
    "{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    f"{START}<start_of_turn>model\n{{% endif %}}"
)
PHI = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    f"{START}<|assistant|>\n{{% endif %}}"
)
TEMPLATES = {"chatml": CHATML, "llama-3": LLAMA_3, "mistral": MISTRAL, "gemma": GEMMA, "phi": PHI}
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
