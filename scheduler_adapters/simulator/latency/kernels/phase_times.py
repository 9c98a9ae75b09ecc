"""Step times from whole prefills and whole decode steps measured on a server (Splitwise's set).

Coarser than kernels: a prefill counts by its tokens, a decode step by its requests; contexts do not
matter. Nothing else is published for Llama-2-70B and Bloom-176B on DGX machines.
Source: Mutinifni/splitwise-sim, commit 8f99e7dc, MIT; its `h100-80gb-pcap` rows are left out,
because their prefills are those of `h100-80gb` times a constant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lengthwise.errors import DataError, SchedulingError
from scheduler_adapters.simulator.latency.kernels.grid import by_count
from scheduler_adapters.simulator.latency.kernels.kernel_latency import MAX_SEQUENCES, MAX_TOKENS
from scheduler_adapters.simulator.latency.models import Chunk, LatencyModel
from scheduler_adapters.workload.table_files import read_table

_MIXED = 1.1
"""Cost of a step with both phases in units of its prefill, as in Splitwise's simulator."""
_PROMPT_TOKENS = 512
"""Prompts of the runs that vary the batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PhaseLatency(LatencyModel):
    """Step times from two curves, by count."""

    prefill_s: Sequence[float]
    """[prompt tokens of the step]"""
    decode_s: Sequence[float]
    """[decodes of the step]"""

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens = num_decodes + sum(chunk for _, chunk in prefills)
        try:
            if not prefills:
                return self.decode_s[num_decodes]
            return self.prefill_s[tokens] * (_MIXED if num_decodes else 1.0)
        except IndexError as error:
            raise SchedulingError(
                f"the phase times end before a step of {tokens} tokens with {num_decodes} "
                f"decodes; use a token budget of at most {len(self.prefill_s) - 1} and at most "
                f"{len(self.decode_s) - 1} requests at a time"
            ) from error


def read_phase_times(
    path: Path, *, model: str, hardware: str, tensor_parallel: int
) -> pd.DataFrame:
    """Return the measurements of one server: milliseconds by prompt, batch and output, repeated.

    Raises:
        DataError: the file cannot be read, or does not hold that server (the known are listed).
    """
    keys = ["model", "hardware", "tensor_parallel"]
    wanted = [model, hardware, tensor_parallel]
    columns = (*keys, "prompt_size", "batch_size", "token_size", "prompt_time", "token_time")
    table = read_table(path, columns)
    rows = table[(table[keys] == wanted).all(axis=1)]
    if rows.empty:
        known = sorted(set(table[keys].itertuples(index=False, name=None)))
        raise DataError(f"has no measurements of {tuple(wanted)}; use one of {known}", path=path)
    return rows


def make_phase_latency(rows: pd.DataFrame) -> PhaseLatency:
    """Return the two curves of one server: medians of the repeated measurements."""
    prefill_ms = rows[rows.batch_size == 1].groupby("prompt_size").prompt_time.median()
    batches = rows[rows.prompt_size == _PROMPT_TOKENS].groupby("batch_size")
    batch_ms = batches[["prompt_time", "token_time"]].median()
    # Two GPUs ran out of memory at batch 64: its prefill took less than that of batch 32.
    batch_ms = batch_ms[batch_ms.prompt_time == np.maximum.accumulate(batch_ms.prompt_time)]
    decode_ms = batch_ms.token_time
    return PhaseLatency(
        prefill_s=(by_count(prefill_ms.index, prefill_ms, most=MAX_TOKENS) * 1e-3).tolist(),
        decode_s=(by_count(decode_ms.index, decode_ms, most=MAX_SEQUENCES) * 1e-3).tolist(),
    )
