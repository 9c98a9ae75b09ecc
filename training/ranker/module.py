"""The Lightning module: steps of training, validation, test and prediction, logging, optimiser.

    ranker = LengthRanker.load_from_checkpoint("run/checkpoints/best.ckpt")
    ranker.score(["Write a poem.", "Say yes."])

Shapes: N prompts of a split, B prompts of a batch, P pairs, K learnt lengths (mostly one).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from lengthwise.agreement import tau_b
from training.config import TrainConfig, config_from
from training.ranker import losses
from training.ranker.data_module import COMPONENTS, Batch, tokenize
from training.ranker.encoder import PromptScorer, describe_encoder, empty_encoder, in_buckets


def length_scale(lengths_NK: NDArray[np.float64]) -> dict[str, list[float]]:
    """Return the scale of training labels in tokens, per label; NaN marks a missing length."""
    logs_NK = np.log(lengths_NK)
    return {
        "mean": np.nanmean(lengths_NK, axis=0).tolist(),
        "log_mean": np.nanmean(logs_NK, axis=0).tolist(),
        "log_sd": np.maximum(np.nanstd(logs_NK, axis=0), 1e-6).tolist(),
    }


def start_heads(scorer: PromptScorer, objective: str, scale: Mapping[str, Any]) -> None:
    """Set the scores of an untrained scorer to the mean of what a pointwise objective predicts."""
    start = {"l1": scale["mean"], "log-l1": scale["log_mean"]}.get(objective)
    with torch.no_grad():
        scorer.head.bias.copy_(torch.tensor(start or [0.0] * scorer.head.out_features))


def _token_errors(found_GLM: Tensor, taught_GLM: Tensor) -> Tensor:
    """Return each prompt's mean squared error over its tokens, (G, M); NaN is not compared."""
    known_GLM, (_, length, size) = ~taught_GLM.isnan(), taught_GLM.shape
    errors_GLM = (found_GLM[:, :length, :size].float() - taught_GLM.nan_to_num()) * known_GLM
    return (errors_GLM**2).sum(1) / known_GLM.sum(1).clamp(min=1)


class LengthRanker(L.LightningModule):  # type: ignore[misc]
    """A scorer in training, with the loss, the optimiser and the training curve."""

    def __init__(
        self,
        config: TrainConfig | Mapping[str, Any],
        *,
        encoder: tuple[PromptScorer, Tokenizer] | Mapping[str, Any],
        scale: Mapping[str, Sequence[float]],
        encoder_lr: float,
        total_steps: int,
        steps_per_epoch: int,
    ) -> None:
        """A checkpoint holds all arguments in numbers and text, the encoder as `describe_encoder`.

        `scale` is `length_scale` of the training labels. Steps are those of the optimiser.
        """
        # The trainer's count of steps would load the batches before a resumed run restores its
        # state, and start the epoch again.
        super().__init__()
        config = config_from(config) if isinstance(config, Mapping) else config
        scorer, self.tokenizer = empty_encoder(encoder) if isinstance(encoder, Mapping) else encoder
        self.scorer, self.config = scorer, config
        self.encoder_lr, self.total_steps = encoder_lr, total_steps
        self.steps_per_epoch = steps_per_epoch
        self.save_hyperparameters(
            {
                "config": asdict(config),
                "encoder": describe_encoder(scorer, self.tokenizer),
                "scale": dict(scale),
                "encoder_lr": encoder_lr,
                "total_steps": total_steps,
                "steps_per_epoch": steps_per_epoch,
            },
            logger=False,
        )
        for name in ("log_mean", "log_sd"):
            self.register_buffer(f"{name}_K", torch.tensor(scale[name]), persistent=False)
        self.token_head = nn.Linear(scorer.head.in_features, COMPONENTS)
        """Vectors of tokens -> a teacher's; used in training only."""
        self.labels = config.data.orders[: scorer.head.out_features]
        self.num_encoded = 0
        """Prompts encoded in training, over all processes."""
        self.train_cpu_s = 0.0
        """CPU seconds of this process in training steps."""
        self.history: list[dict[str, float]] = []
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._losses: list[float] = []
        self._cpu_start_s = 0.0

    def score(self, prompts: Sequence[str]) -> NDArray[np.float64]:
        """Return the scores of prompts, higher = longer: (N,), of several labels (N, K)."""
        self.eval()
        return in_buckets(
            lambda ids, mask: self.scorer(ids.to(self.device), mask.to(self.device)).cpu(),
            tokenize(self.tokenizer, prompts).ids,
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        pooled, states = self.scorer.pool_batch(batch.micro_batches)
        scores_BK, lengths_BK = self.scorer.head(pooled).float(), batch.lengths_BK
        loss = self._ranking_loss(scores_BK, lengths_BK, batch.pairs_P2)
        if weight := self.config.loss.log_length_weight:
            known = ~lengths_BK.isnan()
            target_BK = (lengths_BK.log() - self.log_mean_K) / self.log_sd_K
            errors = functional.huber_loss(
                self.scorer.length_head(pooled).float()[known], target_BK[known], reduction="sum"
            )
            loss = loss + weight * errors / known.sum().clamp(min=1)
        if batch.teacher_BK.numel():
            difference = functional.mse_loss(scores_BK, batch.teacher_BK)
            loss = loss + self.config.loss.teacher_weight * difference
        if batch.states:
            pairs = zip(map(self.token_head, states), batch.states, strict=True)
            errors_BM = torch.cat([_token_errors(found, taught) for found, taught in pairs])
            loss = loss + self.config.loss.token_weight * errors_BM.mean()
        self.num_encoded += len(scores_BK) * self.trainer.world_size
        self._losses.append(float(loss.detach()))
        return loss

    def _ranking_loss(self, scores_BK: Tensor, lengths_BK: Tensor, pairs_P2: Tensor) -> Tensor:
        loss = self.config.loss
        if loss.draws_pairs:
            longer, shorter = scores_BK[pairs_P2, 0].unbind(1)
            return losses.margin_ranking_loss(longer, shorter, loss.margin)
        scores_KB, lengths_KB = self._gather(scores_BK).T, self._gather(lengths_BK).T
        known_KB = ~lengths_KB.isnan()
        parts = [
            losses.LOSSES[loss.objective](scores_B[known_B], lengths_B[known_B], loss)
            for scores_B, lengths_B, known_B in zip(scores_KB, lengths_KB, known_KB, strict=True)
            if known_B.any()
        ]
        return torch.stack(parts or [scores_BK.sum() * 0.0]).mean()

    def _gather(self, values_BK: Tensor) -> Tensor:
        """Return the values of all processes, with gradients: a pair may span two of them."""
        if self.trainer.world_size == 1:
            return values_BK
        gathered: Tensor = self.all_gather(values_BK, sync_grads=True)
        return gathered.flatten(0, 1)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Keep the scores until the end of the epoch: tau_b needs all of them."""
        pooled, _ = self.scorer.pool_batch(batch.micro_batches)
        self._seen.append((self.scorer.head(pooled).float().cpu(), batch.lengths_BK.cpu()))

    test_step = validation_step

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the scores of (input_ids, attention_mask), as `forward` of the scorer does."""
        scores: Tensor = self.scorer(*batch)
        return scores.float().cpu()

    def _tau_b(self, part: str) -> dict[str, float]:
        """Return the mean tau_b over labels, and that of each of several labels."""
        scores_NK, lengths_NK = (torch.cat(p).numpy() for p in zip(*self._seen, strict=True))
        self._seen.clear()
        taus = {}
        for label, scores_N, lengths_N in zip(self.labels, scores_NK.T, lengths_NK.T, strict=True):
            known_N = ~np.isnan(lengths_N)
            # 0 for an undefined tau_b (all scores equal): such a checkpoint must never look best.
            taus[label] = float(np.nan_to_num(tau_b(scores_N[known_N], lengths_N[known_N])))
        return {
            f"{part}/tau_b": float(np.mean(list(taus.values()))),
            **{f"{part}/tau_b_{label}": tau for label, tau in taus.items() if len(taus) > 1},
        }

    def on_test_epoch_end(self) -> None:
        self.log_dict(self._tau_b("test"))

    def on_validation_epoch_end(self) -> None:
        taus = self._tau_b("val")
        mean = torch.tensor(np.mean(self._losses) if self._losses else float("nan"))
        loss = float(self.trainer.strategy.reduce(mean, reduce_op="mean"))
        self._losses.clear()
        # Every process validates on every prompt: nothing to reduce.
        self.log_dict({"train/loss": loss, **taus})
        self.history.append(
            {
                "step": float(self.global_step),
                "epoch": self.global_step / self.steps_per_epoch,
                "train/loss": loss,
                **taus,
                "encoder_passes": float(self.num_encoded),
                "cpu_s": round(self.train_cpu_s, 2),
            }
        )

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients; Lightning refuses to for a fused optimiser in mixed precision."""
        if gradient_clip_val:
            by_value = gradient_clip_algorithm == "value"
            clip = nn.utils.clip_grad_value_ if by_value else nn.utils.clip_grad_norm_
            clip(self.parameters(), gradient_clip_val)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed dropout by (seed, step, process), so that a resumed run repeats it."""
        entropy = (self.config.seed, self.global_step, self.global_rank)
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
        self._cpu_start_s = time.process_time()

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.train_cpu_s += time.process_time() - self._cpu_start_s

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["progress"] = (self.num_encoded, self.train_cpu_s, self.history, self._losses)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.num_encoded, self.train_cpu_s, history, pending = checkpoint["progress"]
        self.history, self._losses = list(history), list(pending)

    def configure_optimizers(self) -> dict[str, Any]:
        optim = self.config.optim
        modules = (self.scorer.head, self.scorer.length_head, self.token_head)
        heads = [weight for module in modules for weight in module.parameters()]
        optimizer = torch.optim.AdamW(
            [
                {"params": self.scorer.backbone.parameters(), "lr": self.encoder_lr},
                {"params": heads, "lr": optim.head_lr},
            ],
            weight_decay=optim.weight_decay,
            fused=True,
        )
        warmup = max(1, round(optim.warmup_fraction * self.total_steps))
        decay = max(1, self.total_steps - warmup)

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            return (self.total_steps - step) / decay if optim.decay else 1.0

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
