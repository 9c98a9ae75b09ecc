"""Prompts -> token ids -> length-bucketed batches.

Shapes: N prompts of a split, B prompts of a batch, P pairs, K learnt lengths (mostly one). A
micro-batch has G prompts and L tokens in the longest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import lightning as L
import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, List, Value, concatenate_datasets
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scoring_service.tokenizing import middle_cut
from training.config import TrainConfig, times_of
from training.data.buckets import bucket, micro_batches, pad
from training.data.frames import framed
from training.data.labels import side_by_side, source_codes, targets, union_of
from training.data.pairs import sample_pairs
from training.data.records import column, fingerprint
from training.data.splits import Splits

COMPONENTS: Final = 32
"""Principal components of a token's vector that a student learns at most."""


class Batch(NamedTuple):
    """One optimiser step's prompts, as micro-batches of similar length.

    Every other tensor is in the order of the concatenated micro-batches.
    """

    micro_batches: list[tuple[Tensor, Tensor]]
    """(input_ids, attention_mask), int64 (G, L) each."""
    lengths_BK: Tensor
    """Training labels in tokens, > 0, float32; NaN where a prompt has no such length."""
    pairs_P2: Tensor
    """Positions of the longer and the shorter prompt; empty unless pairs are trained on."""
    teacher_BK: Tensor = torch.empty(0)
    """A teacher's scores, float32; empty without a teacher."""
    states: Sequence[Tensor] = ()
    """Of each micro-batch the teacher's vectors of its tokens, (G, L, M), L of the longest of its
    prompts; NaN if unknown."""


class TokenizedPrompts(NamedTuple):
    """Token ids of each prompt, and the number of prompts that were cut."""

    ids: Sequence[Sequence[int]]
    num_truncated: int


def tokenize(tokenizer: Tokenizer, prompts: Sequence[str]) -> TokenizedPrompts:
    """Return token ids with special tokens, cut as the service cuts them, without padding."""
    # One prompt at a time: a batch would come back padded to its longest.
    encodings = [tokenizer.encode(prompt) for prompt in prompts]
    num_truncated = sum(bool(encoding.overflowing) for encoding in encodings)
    return TokenizedPrompts(list(map(middle_cut, encodings)), num_truncated)


class TokenColumn(Sequence[Any]):
    """Token ids of prompts in a column of lists on disk; a row is a view of it."""

    def __init__(self, column: Any) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, at: Any) -> Any:
        return np.asarray(self.column[at].values)


def tokenize_on_disk(
    tokenizer: Tokenizer, prompts: Dataset, num_processes: int | None
) -> TokenizedPrompts:
    """Return what `tokenize` does, from the cache of Hugging Face Datasets if it is there."""

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        made = [tokenize(tokenizer, [prompt]) for prompt in batch["prompt"]]
        return {"ids": [each.ids[0] for each in made], "cut": [each.num_truncated for each in made]}

    found = prompts.map(
        encode,
        batched=True,
        num_proc=num_processes,
        remove_columns=prompts.column_names,
        features=Features({"ids": List(Value("int32")), "cut": Value("int64")}),
        new_fingerprint=fingerprint(prompts._fingerprint, tokenizer.to_str()),
        desc="Tokenizing",
    )
    num_truncated = int(np.asarray(column(found, "cut")).sum())
    return TokenizedPrompts(TokenColumn(column(found, "ids")), num_truncated)


@dataclass(frozen=True, kw_only=True, eq=False)
class Teacher:
    """A trained ranker, as a student learns from it."""

    revision: str
    tokenizer: Tokenizer
    embeddings_VH: NDArray[np.float32]
    """Its vector of each token alone, by the id of the tokenizer."""
    unlabelled: Sequence[str]
    """Prompts without a length."""
    scores_NK: NDArray[np.float64]
    """Of the training prompts and then the unlabelled ones, by each length; mean 0, deviation 1."""
    states: Sequence[NDArray[np.float16]] = ()
    """Of each prompt the vectors of its tokens in principal components, (L, M); empty: unused."""


@dataclass(eq=False)
class PromptBatches:
    """Batches of one split; an iteration is one epoch, in an order drawn from (seed, epoch).

    The position is state, so a run resumed within an epoch continues with the next batch. A
    training epoch has whole batches only, in a number that its validations divide. The omitted
    prompts change with the order.
    A training batch holds prompts of one source, because lengths of different data sets do not
    compare. Of several processes each takes every world_size-th prompt of each batch.
    """

    ids: Sequence[Sequence[int]]
    lengths_NK: NDArray[np.float64]
    pad_id: int
    config: TrainConfig
    shuffle: bool
    min_tokens: int = 2
    """Least length of a padded micro-batch."""
    sources_N: NDArray[np.int64] | None = None
    """Of each prompt the number of its data set; None: there is one."""
    teacher_NK: NDArray[np.float64] | None = None
    states: Sequence[Tensor] = ()
    """Of each prompt the teacher's vectors of its tokens, (L, M)."""
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        sources_N = self.sources_N
        if sources_N is None:
            sources_N = np.zeros(len(self.ids), np.int64)
        self.members = [np.flatnonzero(sources_N == name) for name in np.unique(sources_N)]
        whole = self.config.batch_size if torch.cuda.is_available() else 8
        self.micro_batch_size = self.config.micro_batch_size or whole
        self._epoch = 0
        self._next = 0

    def __len__(self) -> int:
        if not self.shuffle:
            return -(-len(self.ids) // self.config.batch_size)
        loss = self.config.loss
        ratio = loss.pairs_per_prompt * 2 if loss.draws_pairs else 1.0
        batches = (round(len(m) * ratio) // self.config.batch_size for m in self.members)
        count = max(1, sum(batches))
        return count - count % min(count, self.config.validations_per_epoch)

    def __iter__(self) -> Iterator[Batch]:
        batches = self._draw()
        for number in range(self._next, len(batches)):
            # Before the yield: Lightning counts the batches and never requests one too many.
            is_last = number + 1 == len(batches)
            self._next = 0 if is_last else number + 1
            self._epoch += is_last
            yield self._collate(batches[number])

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._next = state["epoch"], state["next"]

    def _draw(self) -> list[NDArray[np.int64]]:
        size, count = self.config.batch_size, len(self)
        if not self.shuffle:
            return np.split(np.arange(len(self.ids)), range(size, len(self.ids), size))
        rng = np.random.default_rng((self.config.seed, self._epoch))
        size -= size % 2 if self.config.loss.draws_pairs else 0
        batches = [
            order[start : start + size]
            for order in (self._order(members, rng) for members in self.members)
            for start in range(0, max(1, len(order) - size + 1), size)
        ]
        return [batches[n] for n in rng.permutation(len(batches))[:count]]

    def _order(self, members: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        if not self.config.loss.draws_pairs:
            return rng.permutation(members)
        pairs = sample_pairs(
            self.lengths_NK[members, 0],
            pairs_per_prompt=self.config.loss.pairs_per_prompt,
            delta=self.config.loss.delta,
            seed=(self.config.seed, self._epoch),
        )
        return members[pairs.reshape(-1)]

    def _collate(self, chosen: NDArray[np.int64]) -> Batch:
        is_pairs = self.shuffle and self.config.loss.draws_pairs
        blocks = chosen.reshape(-1, 2 if is_pairs else 1)
        chosen = blocks[self.rank :: self.world_size].reshape(-1)
        ids = [self.ids[n] for n in chosen.tolist()]
        is_whole = self.micro_batch_size >= self.config.batch_size
        buckets = (bucket if is_whole else micro_batches)(ids, self.micro_batch_size)
        order = np.concatenate(buckets)
        pairs = np.argsort(order).reshape(-1, 2) if is_pairs else np.empty((0, 2), np.int64)
        taught = self.teacher_NK
        at = [chosen[part] for part in buckets if self.states]
        padded = (pad([ids[n] for n in part], self.pad_id, self.min_tokens) for part in buckets)
        return Batch(
            [(torch.from_numpy(input_ids), torch.from_numpy(mask)) for input_ids, mask in padded],
            torch.from_numpy(self.lengths_NK[chosen[order]].astype(np.float32)),
            torch.from_numpy(pairs),
            torch.empty(0) if taught is None else torch.from_numpy(taught[chosen[order]]).float(),
            [pad_sequence([self.states[n] for n in rows], True, np.nan) for rows in at],
        )


class LengthData(L.LightningDataModule):  # type: ignore[misc]
    """Training and validation prompts, tokenized once, and their lengths."""

    def __init__(
        self,
        labels: Sequence[Splits],
        tokenizer: Tokenizer,
        config: TrainConfig,
        teacher: Teacher | None = None,
    ) -> None:
        """`labels` are the splits by each length to learn, or those of each data set.

        The prompts are those of the first length, or of all data sets. With a teacher its
        unlabelled prompts follow, with lengths NaN.
        """
        super().__init__()
        splits, framed_part = labels[0], config.data.framed
        self.splits, self.labels, self.config, self.teacher = splits, labels, config, teacher
        train, items, self.val_items = [s.train for s in labels], splits.train, splits.val
        if config.data.head_per_dataset:
            times = (1, *(times_of(name)[1] for name in config.data.also))
            repeated = [[each] * count for each, count in zip(train, times, strict=True)]
            items = union_of([concatenate_datasets(each) for each in repeated])
            self.val_items = union_of([s.val for s in labels])
        self.train_lengths_NK = side_by_side(
            items, train, partial(targets, repeats=config.data.repeats)
        )
        self.sources_N = None if teacher else source_codes(items)
        self.pad_id = int((tokenizer.padding or {})["pad_id"])
        # The tokenizer's limit: an encoder may have fewer positions than data.max_prompt_tokens.
        limit = int((tokenizer.truncation or {})["max_length"])
        self.min_train_tokens = limit if config.pad_to_limit else 2
        plain, lengths = items.select_columns(["prompt"]), self.train_lengths_NK[:, 0]
        if teacher is not None:
            # A batch mixes data sets, whose scores compare and whose lengths do not.
            own = pc.equal(column(items, "source"), splits.val[0]["source"])
            self.train_lengths_NK[~np.asarray(own)] = np.nan
            missing = np.full((len(teacher.unlabelled), len(labels)), np.nan)
            self.train_lengths_NK = np.concatenate([self.train_lengths_NK, missing])
            unlabelled = Dataset.from_dict({"prompt": teacher.unlabelled}, plain.features)
            plain, lengths = concatenate_datasets([plain, unlabelled]), teacher.scores_NK[:, 0]
        prompts = framed(plain, lengths, framed_part, config.seed)
        self.train = tokenize_on_disk(tokenizer, prompts, config.data.num_processes)
        self.states = [] if teacher is None else _known_states(teacher, plain, prompts, self.train)
        self.val = tokenize_on_disk(tokenizer, self.val_items, config.data.num_processes)

    def train_dataloader(self) -> PromptBatches:
        """Return the training batches, of which each process takes its part."""
        trainer: Any = self.trainer
        return PromptBatches(
            self.train.ids,
            self.train_lengths_NK,
            self.pad_id,
            self.config,
            shuffle=True,
            min_tokens=self.min_train_tokens,
            sources_N=self.sources_N,
            teacher_NK=None if self.teacher is None else self.teacher.scores_NK,
            states=self.states,
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
        )

    def val_dataloader(self) -> PromptBatches:
        """Return the validation batches, all of them in every process."""
        lengths_NK = side_by_side(self.val_items, [splits.val for splits in self.labels])
        return PromptBatches(self.val.ids, lengths_NK, self.pad_id, self.config, shuffle=False)


def _known_states(
    teacher: Teacher, plain: Dataset, prompts: Dataset, train: TokenizedPrompts
) -> list[Tensor]:
    """Return the teacher's vectors of each prompt, or NaN where it has other tokens.

    It has them in a frame, or cut at another limit than the teacher's.
    """
    rows = zip(teacher.states, plain["prompt"], prompts["prompt"], train.ids, strict=False)
    return [
        torch.from_numpy(
            each if text == prompt and len(each) == len(ids) else np.full_like(each[:1], np.nan)
        )
        for each, text, prompt, ids in rows
    ]
