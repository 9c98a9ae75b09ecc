"""Models with random weights: shapes, devices and what is refused."""

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.engines.random_model import (
    device_name,
    find_device,
    llama_config,
    make_random_model,
    make_tiny_model,
)


def test_the_large_shape_has_the_parameters_of_llama_2_7b():
    config = llama_config("7b", max_tokens=100)
    assert config.max_position_embeddings == 100
    assert not config.tie_word_embeddings
    width, inner = config.hidden_size, config.intermediate_size
    layer = 4 * width * width + 3 * width * inner + 2 * width
    count = 2 * config.vocab_size * width + config.num_hidden_layers * layer + width
    assert count == 6_738_415_616


def test_an_unknown_shape_or_device_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="use one of tiny, small, 7b"):
        llama_config("huge")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        find_device("cuda:1")
    assert find_device(None) == find_device("cpu") == device_name("cpu") == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert find_device(None) == "cuda"


def test_a_seed_makes_the_same_weights_and_they_are_read_back(tmp_path):
    from transformers import AutoModelForCausalLM

    one, same, other = (make_random_model("tiny", "cpu", seed=seed) for seed in (1, 1, 2))
    weights = [next(model.parameters()) for model in (one, same, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])
    read = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path / "model"))
    assert sum(p.numel() for p in read.parameters()) > 1_000_000
