"""Seconds of an engine step by the latency models that compiled code can evaluate."""

import numpy as np

from scheduler_adapters.simulator.compiled.residents import ceil_div, jit
from scheduler_adapters.simulator.latency.models import TABLES


@jit
def step_s(kind, numbers, dense, decode, prefill, count, context, chunks, num_chunks):
    """Return the seconds of a step by one of the latency models; -1 where its tables end.

    `chunks` holds, for each chunk, the tokens before it and its own tokens.
    """
    tokens = count
    for i in range(num_chunks):
        tokens += chunks[i, 1]
    if kind == TABLES:
        return _table_s(numbers, dense, decode, prefill, count, context, tokens, chunks, num_chunks)
    pairs = 0.0
    for i in range(num_chunks):
        pairs += chunks[i, 1] * (chunks[i, 0] + chunks[i, 1] / 2)
    base_s = numbers[0] + max(numbers[1], tokens * numbers[2])
    return base_s + context * numbers[3] + pairs * numbers[4]


@jit
def _table_s(numbers, dense, decode, prefill, count, context, tokens, chunks, num_chunks):
    if tokens >= len(dense):
        return -1.0
    layer_ms = dense[tokens]
    if count:
        column = ceil_div(context // count, 64)
        if count >= decode.shape[0] or column >= decode.shape[1]:
            return -1.0
        layer_ms += decode[count, column]
    if num_chunks:
        row, squares = 0, 0
        for i in range(num_chunks):
            row += ceil_div(chunks[i, 0], 64)
            squares += chunks[i, 1] * chunks[i, 1]
        column = int(np.rint(np.sqrt(squares)))
        if row >= prefill.shape[0] or column >= prefill.shape[1]:
            return -1.0
        attention_ms = prefill[row, column]
        layer_ms += attention_ms * 1.1 if num_chunks > 1 else attention_ms
    return layer_ms * numbers[0] * 1e-3
