"""RAD's staircase of tiles."""

import pytest
from hypothesis import given, strategies as st

from scheduler_adapters.simulator.latency.facts import GPUS, MODELS
from scheduler_adapters.simulator.latency.first_principles import staircase

A100 = GPUS["a100-80g"]
LLAMA = MODELS["llama-3-8b"]


def test_the_staircase_rises_once_per_column_of_tiles():
    model = staircase(LLAMA, A100)
    per_token = model.per_token_s

    def linear_s(tokens):
        return model.step_s(0, 0, [(0, tokens)]) - model.chunk_attention_s(0, tokens)

    assert linear_s(128) - linear_s(1) == pytest.approx(127 * per_token)
    assert linear_s(129) - linear_s(128) == pytest.approx(model.linear_pass_s + per_token)


@given(start=st.integers(0, 5000), tiles=st.integers(1, 4))
def test_mean_ceilings_of_a_staircase_are_exact_over_a_tile(start, tiles):
    model = staircase(LLAMA, A100)
    contexts = range(start + 1, start + 256 * tiles + 1)
    attention_s = sum(
        model.step_s(1, context, []) - model.linear_pass_s - model.per_token_s
        for context in contexts
    )
    assert attention_s == pytest.approx(model.decode_attention_s(list(contexts)))


def test_chunks_of_whole_tiles_cost_what_the_bound_counts():
    model = staircase(LLAMA, A100)
    chunk = model.chunk_tokens
    prompt = 8 * chunk
    prefill_s = sum(model.chunk_attention_s(before, chunk) for before in range(0, prompt, chunk))
    decode_s = model.decode_attention_s([prompt + 1])
    linear_s = (prompt + 1) * (model.linear_pass_s / model.tile_columns + model.per_token_s)
    assert model.mean_work_s([prompt], [1]) == pytest.approx(prefill_s + decode_s + linear_s)
