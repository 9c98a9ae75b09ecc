"""The Lightning module: losses on known lengths, tau_b per label, warm-up and decay."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from training.config import DataConfig, EncoderConfig, LossConfig, OptimConfig, TrainConfig
from training.ranker.data_module import Batch
from training.ranker.encoder import PromptScorer
from training.ranker.losses import LOSSES, margin_ranking_loss
from training.ranker.module import LengthRanker, length_scale, start_heads

LENGTHS = np.array([[10.0, 5.0], [100.0, np.nan], [1000.0, 500.0]])


class Lookup(nn.Module):
    """A backbone whose vector of a prompt is its first token, four times."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=4, to_json_string=lambda use_diff: "{}")
        self.embedding = nn.Embedding.from_pretrained(
            torch.arange(50.0)[:, None].repeat(1, 4), freeze=False
        )

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=inputs_embeds)


def module_of(config: TrainConfig, lengths: np.ndarray = LENGTHS[:, :1]) -> LengthRanker:
    scorer = PromptScorer(Lookup(), "cls", lengths.shape[1])
    with torch.no_grad():
        scorer.head.weight.fill_(0.25)  # The score of token n is n.
        scorer.head.bias.zero_()
    module = LengthRanker(
        config,
        encoder=(scorer, Tokenizer(models.WordLevel())),
        scale=length_scale(lengths),
        encoder_lr=0.5,
        total_steps=20,
        steps_per_epoch=10,
    )
    module.__dict__["_fabric"] = None
    module.__dict__["_trainer"] = SimpleNamespace(
        world_size=1, strategy=SimpleNamespace(reduce=lambda value, reduce_op: value)
    )
    return module


def batch_of(tokens: list[int], lengths: np.ndarray, pairs: list[list[int]] | None = None) -> Batch:
    ids = torch.tensor(tokens)[:, None]
    pairs_P2 = torch.tensor(pairs or np.empty((0, 2), np.int64))
    lengths_BK = torch.tensor(lengths, dtype=torch.float32)
    return Batch([(ids, torch.ones_like(ids))], lengths_BK, pairs_P2)


def test_a_pointwise_head_starts_at_the_mean_length():
    for objective, start in {"l1": 370.0, "log-l1": np.log(100), "all-pairs": 0.0}.items():
        scorer = PromptScorer(Lookup(), "cls", 1)
        start_heads(scorer, objective, length_scale(LENGTHS[:, :1]))
        assert scorer.head.bias.item() == pytest.approx(start, rel=1e-6)


def test_the_loss_of_several_labels_leaves_unknown_lengths_out():
    config = TrainConfig(
        data=DataConfig(heads=("reasoning_tokens",)),
        loss=LossConfig(objective="l1", log_length_weight=0),
    )
    module = module_of(config, LENGTHS)
    scores_BK = torch.tensor([[1.0], [2.0], [3.0]]) + module.scorer.head.bias.detach()
    lengths_BK = torch.tensor(LENGTHS, dtype=torch.float32)
    misses_BK = (scores_BK - lengths_BK).abs()
    expected = (misses_BK[:, 0].mean() + misses_BK[[0, 2], 1].mean()) / 2
    loss = module.training_step(batch_of([1, 2, 3], LENGTHS), 0)
    assert loss.item() == pytest.approx(expected.item())
    assert module.num_encoded == 3


def test_drawn_pairs_are_compared_as_they_were_drawn():
    module = module_of(TrainConfig(loss=LossConfig(objective="pairs", log_length_weight=0)))
    loss = module.training_step(batch_of([3, 1, 2], LENGTHS[:, :1], [[1, 0], [2, 1]]), 0)
    expected = margin_ranking_loss(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0]), 1.0)
    assert loss.item() == pytest.approx(expected.item())


def test_states_add_the_mean_squared_error_over_known_tokens():
    loss = LossConfig(objective="l1", log_length_weight=0, token_weight=2.0)
    module = module_of(TrainConfig(loss=loss, encoder=EncoderConfig(backbone="convolution")))
    nn.init.zeros_(module.token_head.weight)
    nn.init.zeros_(module.token_head.bias)
    batch = batch_of([1, 2, 3], LENGTHS[:, :1])
    taught = torch.tensor([[[1.0, 3.0]], [[torch.nan] * 2], [[0.0, 2.0]]])
    more = module.training_step(batch._replace(states=[taught]), 0) - module.training_step(batch, 0)
    # A framed prompt counts as one without an error.
    assert more.item() == pytest.approx(2.0 * (1 + 9 + 0 + 4) / 6, rel=1e-4)


def test_a_new_loss_is_one_entry_of_the_table(monkeypatch):
    monkeypatch.setitem(LOSSES, "squared", lambda s, n, loss: ((s - n) ** 2).mean())
    module = module_of(TrainConfig(loss=LossConfig(objective="squared", log_length_weight=0)))
    loss = module.training_step(batch_of([7, 9], np.array([[7.0], [11.0]])), 0)
    assert loss.item() == pytest.approx(2.0)


def test_validation_logs_the_mean_tau_b_with_undefined_ones_as_0():
    module = module_of(TrainConfig(data=DataConfig(heads=("reasoning_tokens",))), LENGTHS)
    logged: dict[str, float] = {}
    module.log_dict = logged.update  # type: ignore[method-assign,assignment]
    module.trainer.global_step = 5
    lengths = np.array([[1.0, 9.0], [2.0, 9.0], [3.0, np.nan]])
    with torch.no_grad():  # As Lightning validates.
        for rows in ([0, 1], [2]):
            module.validation_step(batch_of([[1, 2, 3][n] for n in rows], lengths[rows]), 0)
    module.on_validation_epoch_end()
    assert logged["val/tau_b_output_tokens"] == pytest.approx(1.0)
    assert logged["val/tau_b_reasoning_tokens"] == 0.0
    assert logged["val/tau_b"] == pytest.approx(0.5)
    (point,) = module.history
    assert (point["step"], point["epoch"]) == (5.0, 0.5)


def test_the_rate_warms_up_and_falls_to_0_or_stays():
    config = TrainConfig(optim=OptimConfig(warmup_fraction=0.2, head_lr=0.25))
    for decay, last in ((True, 1 / 16), (False, 1.0)):
        module = module_of(replace(config, optim=replace(config.optim, decay=decay)))
        made = module.configure_optimizers()
        optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
        assert [group["lr"] for group in optimizer.param_groups] == [0.5 / 4, 0.25 / 4]
        factor = schedule.lr_lambdas[0]
        assert [factor(step) for step in (0, 3, 4, 19)] == pytest.approx([0.25, 1.0, 1.0, last])
