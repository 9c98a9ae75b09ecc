"""Batches: every prompt once per epoch, resumable anywhere, and padding without effect."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.training.prompts import labelled, numbered, splits_of
from training.config import DataConfig, LossConfig, TrainConfig
from training.data.labels import texts
from training.ranker.data_module import Batch, LengthData, PromptBatches, tokenize, tokenize_on_disk
from training.ranker.encoder import build_scorer

CONFIG = TrainConfig(batch_size=8, micro_batch_size=3).with_trainer(val_check_interval=1.0)
IDS = [[2, *range(5, 5 + n % 7), 3] for n in range(40)]
LENGTHS = np.arange(1.0, 41.0)[:, None]


def batches_of(config: TrainConfig = CONFIG, **settings: int) -> PromptBatches:
    return PromptBatches(IDS, LENGTHS, 0, config, shuffle=True, **settings)


def lengths_of(batches: list[Batch]) -> list[list[float]]:
    return [batch.lengths_BK[:, 0].tolist() for batch in batches]


def test_a_batch_is_cut_into_micro_batches_of_8_on_a_cpu_only(monkeypatch):
    config = replace(CONFIG, batch_size=20, micro_batch_size=None)
    for has_gpu, largest in {False: 8, True: 20}.items():
        monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
        for batch in batches_of(config):
            assert max(len(ids) for ids, _ in batch.micro_batches) == largest


def test_an_epoch_holds_each_prompt_once_in_an_order_of_its_own() -> None:
    loader = batches_of()
    first, second = lengths_of(list(loader)), lengths_of(list(loader))
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == LENGTHS[:, 0].tolist()  # noqa: RUF017
    assert first != second
    assert lengths_of(list(batches_of())) == first


@given(st.integers(0, 9))
def test_a_reloaded_stream_goes_on_where_the_saved_one_stood(stop: int) -> None:
    whole = batches_of()
    expected = lengths_of([*whole, *whole])
    interrupted = batches_of()
    seen: list[Batch] = []
    stream = iter(interrupted)
    for _ in range(stop):
        batch = next(stream, None)
        if batch is None:
            stream = iter(interrupted)
            batch = next(stream)
        seen.append(batch)
    resumed = batches_of()
    resumed.load_state_dict(interrupted.state_dict())
    rest = [*resumed, *resumed]
    assert lengths_of([*seen, *rest])[: len(expected)] == expected


def test_labels_follow_their_prompts_through_the_buckets() -> None:
    length_of = {tuple(ids): {LENGTHS[n, 0] for n in range(40) if IDS[n] == ids} for ids in IDS}
    for batch in batches_of():
        rows = [
            tuple(ids[mask.bool()].tolist())
            for input_ids, masks in batch.micro_batches
            for ids, mask in zip(input_ids, masks, strict=True)
        ]
        for row, length in zip(rows, batch.lengths_BK[:, 0].tolist(), strict=True):
            assert length in length_of[row]


def test_pairs_point_at_the_longer_prompt_first() -> None:
    config = replace(CONFIG, loss=LossConfig(objective="pairs", pairs_per_prompt=2))
    loader = batches_of(config)
    assert len(loader) == 20
    for batch in loader:
        longer, shorter = batch.lengths_BK[batch.pairs_P2, 0].T
        assert len(longer) == 4
        assert (longer > shorter).all()
        assert sorted(batch.pairs_P2.reshape(-1).tolist()) == list(range(8))


@pytest.mark.parametrize("objective", ["all-pairs", "pairs"])
def test_processes_share_a_batch_without_overlap(objective: str) -> None:
    config = replace(CONFIG, loss=LossConfig(objective=objective))  # type: ignore[arg-type]
    whole = lengths_of(list(batches_of(config)))
    parts = [lengths_of(list(batches_of(config, rank=r, world_size=2))) for r in (0, 1)]
    for batch, mine, theirs in zip(whole, *parts, strict=True):
        assert len(mine) == len(theirs) == 4
        assert sorted([*mine, *theirs]) == sorted(batch)


def test_prompts_longer_than_the_encoder_are_cut_and_counted(tiny_bert: Path) -> None:
    _, tokenizer = build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=8)
    tokenized = tokenize(tokenizer, ["name bees", "bees and " * 500])
    assert [len(ids) for ids in tokenized.ids] == [4, 8]
    assert tokenized.num_truncated == 1


@pytest.mark.parametrize("num_processes", [None, 2])
def test_tokens_on_disk_are_those_in_memory(tiny_bert: Path, num_processes: int | None) -> None:
    _, tokenizer = build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=8)
    prompts = labelled({"bees and " * (n % 20) + f"bees {n}": (n + 1,) for n in range(2500)})
    found = tokenize_on_disk(tokenizer, prompts, num_processes)
    expected = tokenize(tokenizer, texts(prompts))
    assert [row.tolist() for row in found.ids] == expected.ids
    assert (len(found.ids), found.num_truncated) == (2500, expected.num_truncated)


def test_a_prompt_of_several_sets_is_encoded_once_with_lengths(tiny_bert):
    _, tokenizer = build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=8)
    sets = [
        labelled({f"bees {n}": (n + offset,) for n in numbers})
        for numbers, offset in ((range(1, 4), 0), (range(3, 5), 100))
    ]
    config = replace(CONFIG, data=DataConfig(dataset="a", also=("b*2",), head_per_dataset=True))
    made = LengthData([splits_of(s, s) for s in sets], tokenizer, config)
    rows = [[1, np.nan], [2, np.nan], [3, 103], [np.nan, 104], [np.nan, 104]]
    np.testing.assert_allclose(made.train_lengths_NK, rows)
    (batch,) = made.val_dataloader()
    np.testing.assert_allclose(np.nansum(batch.lengths_BK, axis=0), [6, 207])


def test_states_follow_prompts_but_not_into_frames_or_other_cuts(tiny_bert):
    _, tokenizer = build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=64)
    prompts = numbered(16)
    ids = tokenize(tokenizer, texts(prompts)).ids
    states = [np.full((len(each), 2), n, np.float16) for n, each in enumerate(ids, 1)]
    states[3] = states[3][:-1]
    teacher: Any = SimpleNamespace(scores_NK=LENGTHS[:16], unlabelled=[], states=states)
    config = replace(CONFIG, data=DataConfig(framed=0.3))
    made = LengthData([splits_of(prompts, prompts)], tokenizer, config, teacher)
    known = [made.train.ids[n].tolist() == ids[n] and n != 3 for n in range(16)]
    assert 0 < sum(known) < 15
    for batch in made.train_dataloader():
        rows = [row for micro in batch.states for row in micro]
        for row, (number,) in zip(rows, batch.teacher_BK.int().tolist(), strict=True):
            found = row[~row.isnan().any(1)]
            assert found.tolist() == [[number] * 2] * (len(ids[number - 1]) * known[number - 1])


def test_padding_to_the_limit_stops_at_the_last_position(tiny_bert: Path) -> None:
    _, tokenizer = build_scorer(str(tiny_bert), "mean", seed=0, max_prompt_tokens=500)
    config = replace(CONFIG, pad_to_limit=True, data=DataConfig(max_prompt_tokens=500))
    prompts = numbered(16)
    data = LengthData([splits_of(prompts, prompts)], tokenizer, config)
    padded = {ids.shape[1] for batch in data.train_dataloader() for ids, _ in batch.micro_batches}
    chosen_by = {ids.shape[1] for batch in data.val_dataloader() for ids, _ in batch.micro_batches}
    assert padded == {128}
    assert max(chosen_by) < 10


LARGE = """
import resource, sys
from tokenizers import Tokenizer, models, pre_tokenizers
from training.config import DataConfig, TrainConfig
from training.data.labelled_splits import load_splits
from training.ranker.data_module import LengthData

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "bees": 2}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
tokenizer.enable_truncation(16)
before = peak_mb()
config = TrainConfig(data=DataConfig(dataset=sys.argv[1]))
splits = load_splits(config, None).splits
data = LengthData([splits], tokenizer, config)
batch = next(iter(data.train_dataloader()))
print(len(splits.train), len(batch.lengths_BK), peak_mb() - before)
"""
"""What a training run does with a log before its first step; the libraries are in memory before."""


ROWS = int(os.environ.get("LENGTHWISE_ROWS", "30000"))
"""`make soak` has a million."""


@pytest.mark.slow
def test_a_log_is_batched_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("w") as file:
        for n in range(ROWS):
            file.write(f'{{"prompt": "{n} bees of {n * 7919}", "output_tokens": {n % 997 + 1}}}\n')
    command = [sys.executable, "-c", LARGE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    num_train, num_batch, peak_mb = map(float, done.stdout.split())
    assert (num_train > 0.79 * ROWS, num_batch) == (True, TrainConfig().batch_size)
    assert peak_mb < max(96, 2048 * ROWS / 1e6)
