"""A two-layer random BERT with a vocabulary of drawn prompts, and tables of these."""

import asyncio
import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests.training import drawn
from tests.training.prompts import PromptResponse
from tests.training.sources.github import write_repositories
from training.data.cards import Card, read_card


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """Folder of a model and tokenizer that transformers loads; 4 ms per training step."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-bert")
    texts = [*drawn.TASKS, *drawn.TOPICS, *drawn.MANNERS, "and ."]
    words = sorted({word for text in texts for word in text.lower().replace("-", " - ").split()})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {token: number for number, token in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,  # The paper pads every prompt to 128 tokens.
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def no_dropout(tiny_bert, tmp_path):
    """The tiny encoder without dropout, whose random numbers differ between devices."""
    folder = tmp_path / "no-dropout"
    shutil.copytree(tiny_bert, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def quick_export(monkeypatch):
    """Models are exported as torch did before, in a twentieth of the time; they score alike."""
    import torch

    def export(scorer, path):
        names, axes = ["input_ids", "attention_mask"], {0: "batch", 1: "tokens"}
        example = (torch.ones(2, 8, dtype=torch.int64),) * 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                scorer.eval(), example, str(path), input_names=names, output_names=["score"],
                dynamic_axes=dict.fromkeys(names, axes) | {"score": {0: "batch"}}, dynamo=False,
            )  # fmt: skip

    monkeypatch.setattr("training.export.onnx_models.export_fp32", export)


@pytest.fixture
def make_card(tmp_path):
    """Writes a table and its card; returns the path of the card."""

    def make(
        records: list[PromptResponse] | None = None,
        *,
        table: Path | None = None,
        rows: int | None = None,
        **changes: object,
    ) -> Path:
        from lengthwise.bundle import sha256_of

        if table is None:
            table = tmp_path / "logs.parquet"
            frame = pd.DataFrame(records or [], columns=["prompt", "output_tokens", "model"])
            frame.to_parquet(table)
        card = {
            "id": "logs",
            "source": "someone/logs",
            "commit": "0" * 40,
            "licence": "CC0-1.0",
            "path": table.name,
            "sha256": sha256_of(table),
            "records": rows if rows is not None else len(records or []),
            "fields": {"prompt": "prompt", "output_tokens": "output_tokens"},
            "tokenizer": "none",
        }
        path = tmp_path / "card.yaml"
        path.write_text(json.dumps(card | changes))  # JSON is YAML.
        return path

    return make


@pytest.fixture(scope="session")
def commits(tmp_path_factory):
    """Folder of small public sources as git repositories, and the commit of each."""
    folder = tmp_path_factory.mktemp("git")
    return folder, write_repositories(folder)


@pytest.fixture
def git_host(commits, monkeypatch):
    """Address of a git server whose commits the cards name as long as the fixture lives."""

    def read(name: str) -> Card:
        card = read_card(name)
        return replace(card, commit=commits[1].get(card.source, card.commit))

    monkeypatch.setattr("training.sources.fetching.read_card", read)
    return f"file://{commits[0]}"


@pytest.fixture(scope="session")
def mlruns(tmp_path_factory):
    """One store for all tests here: making the database takes a second."""
    from training.release.tracking import Tracker

    root = tmp_path_factory.mktemp("my runs")
    unfinished = Tracker(root, run_name="unfinished")
    unfinished.client.set_terminated(unfinished.run_id, "FAILED")
    return root


@pytest.fixture
def no_waiting(monkeypatch):
    """Waits between attempts take no time; returns those that were requested."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(delay_s: float) -> None:
        waits.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("training.collection.endpoint.asyncio.sleep", note)
    return waits
