"""Attention for transformers' continuous batching by the flash kernel that torch brings along.

Without the package flash-attn the engine lays the residents' keys in one row and masks what belongs
to others: every request attends to all, and a step takes the square of the seats. This calls
torch's kernel with the borders of the requests instead. Where it can be had, `register()` gives the
name to ask for.
"""

from typing import Any, Final

from lengthwise.errors import UnsupportedByEngine

NAME: Final = "paged|torch_varlen"
"""Not one of the two names for which the engine builds a mask."""


def register() -> str:
    """Make the attention known to transformers; the `attn_implementation` that asks for it.

    Raises:
        UnsupportedByEngine: this version of transformers takes no attention but its own.
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
    cu_seq_lens_q: Any,
    cu_seq_lens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    read_index: Any,
    write_index: Any,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """Attention of packed requests, each over its own past; (1, heads, tokens, head size) in."""
    from torch.nn.attention.varlen import varlen_attn

    keys, values = cache.update(
        key_states=key,
        value_states=value,
        layer_idx=module.layer_idx,
        read_index=read_index,
        write_index=write_index,
    )
    if (shared_by := query.shape[1] // keys.shape[1]) > 1:
        keys, values = (kept.repeat_interleave(shared_by, dim=1) for kept in (keys, values))
    queries = query.transpose(1, 2).squeeze(0)
    out = varlen_attn(
        queries.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        cu_seq_lens_q,
        cu_seq_lens_k,
        max_seqlen_q,
        max_seqlen_k,
        scale=scaling,
        window_size=(-1, 0),  # causal, the last query at the last key
    )
    return out, None
