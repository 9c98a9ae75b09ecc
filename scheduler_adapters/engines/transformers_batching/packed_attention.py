"""Attention for transformers' continuous batching by torch's own flash kernel.

Without the package flash-attn the engine puts the residents' keys into one row, and masks those of
other requests. A step then takes time quadratic in the seats. torch's kernel gets the boundaries of
the requests instead.
"""

from typing import Any, Final

from lengthwise.errors import UnsupportedByEngine

NAME: Final = "paged|torch_varlen"
"""Name of the attention; the engine builds no mask for it."""


def register() -> str:
    """Register the attention in transformers; return its `attn_implementation`.

    Raises UnsupportedByEngine: this version of transformers supports only its own attention.
    """
    from transformers import AttentionInterface, __version__

    if "paged|sdpa" not in AttentionInterface().valid_keys():
        raise UnsupportedByEngine(
            f"transformers {__version__} batches with no attention but its own; use 5.13 to 5.17, "
            "or install flash-attn"
        )
    AttentionInterface.register(NAME, attend)
    return NAME


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    cache: Any,
    scaling: float | None = None,
    **step: Any,
) -> tuple[Any, None]:
    """Return the attention of packed requests, each over its own past.

    Inputs have the shape (1, heads, tokens, head size).
    """
    from torch.nn.attention.varlen import varlen_attn

    keys, values = cache.update(
        key_states=key,
        value_states=value,
        layer_idx=module.layer_idx,
        read_index=step["read_index"],
        write_index=step["write_index"],
    )
    if (shared_by := query.shape[1] // keys.shape[1]) > 1:
        keys, values = (kept.repeat_interleave(shared_by, dim=1) for kept in (keys, values))
    queries = query.transpose(1, 2).squeeze(0)
    out = varlen_attn(
        queries.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        step["cu_seq_lens_q"],
        step["cu_seq_lens_k"],
        step["max_seqlen_q"],
        step["max_seqlen_k"],
        scale=scaling,
        window_size=(-1, 0),  # causal, the last query at the last key
    )
    return out, None
