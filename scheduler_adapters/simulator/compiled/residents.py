"""The state of the compiled loop: requests, decodes, limits; and evictions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import heappush
from pathlib import Path
from typing import Any, Final

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache
from numpy.typing import NDArray

from scheduler_adapters.views import StepRule

_FILES: Final = sorted(Path(__file__).parent.glob("*.py"))
_SOURCE = sha256(b"".join(path.read_bytes() for path in _FILES)).hexdigest()


class _FolderCache(FunctionCache):
    """Machine code that is valid as long as no file of this folder changes."""

    # Numba looks at the file of the outermost function only, and the others are parts of it.
    def _index_key(self, *key: Any) -> tuple[Any, ...]:
        return (*super()._index_key(*key), _SOURCE)


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function, as a part of its callers, and cache the machine code."""
    compiled = njit(nogil=True, forceinline=True)(function)
    compiled._cache = _FolderCache(function)
    return compiled


REQUEST = np.dtype(
    [
        # Decodes, in one cache line.
        ("due", "i8"),  # number of common steps at which it is complete or its rank changes
        ("context", "i8"),  # tokens; of decodes less the common steps
        ("end", "i8"),  # context in tokens when complete
        ("lane", "i8"),
        ("bucket", "i8"),  # common steps, modulo the block size, at which it needs a block
        ("placed_tick", "i8"),
        ("own_tick", "i8"),  # of the last token outside a common step
        ("first_tick", "i8"),  # of the current run
        # Ranks: (key, turn, row) in the queue, (level, turn, row) of residents.
        ("key", "f8"),
        ("level", "f8"),
        ("turn", "f8"),
        ("phase", "i8"),
        ("starves_s", "f8"),  # time from which the key is -inf
        ("tbt_s", "f8"),
        ("ranked_tick", "i8"),  # of the token from which `turn` follows
        ("thinking", "i8"),  # tokens
        ("demoted_at", "i8"),  # tokens
        # Queue and prefill.
        ("arrival_s", "f8"),
        ("prompt", "i8"),  # tokens
        ("left", "i8"),  # tokens to compute; 0 in decode
        ("evicted_s", "f8"),
        ("waits", "?"),
        # Results.
        ("rejected", "?"),
        ("scheduled_s", "f8"),
        ("first_token_s", "f8"),
        ("finished_s", "f8"),
        ("preemptions", "i8"),
    ],
    align=True,
)
LANE = np.dtype([("count", "i8"), ("context", "i8"), ("placed_tick", "i8")])
"""Decodes of one `Rank.lane`: number, sum of `context`, last tick at which all were placed."""
STATE = np.dtype(
    [
        ("now_s", "f8"),
        ("tick", "i8"),
        ("used", "i8"),  # blocks
        ("evictions", "i8"),  # since the last token
        ("admissions", "i8"),
        ("waiting", "i8"),  # requests, under GUARDED
        ("common", "i8"),  # number of common steps
        ("common_tick", "i8"),  # of the last common step
        ("soonest", "i8"),  # lower bound of `due`
        # The current step; `continued` are the chunks of prefills that were resident before.
        *((name, "i8") for name in ("budget", "decodes", "decode_context", "chunks", "continued")),
        ("longest", "i8"),  # tokens of the longest chunk
    ]
)
LIMITS = np.dtype(
    [
        *((name, "i8") for name in ("kind", "blocks", "watermark", "headroom", "block_tokens")),
        *((name, "i8") for name in ("budget", "seats", "max_decodes", "chunk")),
        *((name, "i8") for name in ("max_prefills", "max_admissions")),
        *((name, "?") for name in ("mixed", "whole_prompts", "padded_tokens")),
        *((name, "i8") for name in ("prefill_lane", "decode_lane", "quantum_tokens")),
        *((name, "f8") for name in ("offset_below", "offset_above", "memory_limit")),
        *((name, "f8") for name in ("times", "at_least")),
        ("default_tbt_s", "f8"),
    ],
    align=True,
)
"""Of the instance, its rule and its policy."""

STATIC, SLAI, QUANTA, GUARDED = range(4)
"""Kinds of policies."""
NO_LIMIT = 2**60
NO_LANE = -1
LAST = (np.inf, np.inf, NO_LIMIT)
"""Rank behind all others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledPolicy:
    """The part of a policy in the compiled loop."""

    kind: int
    rule: StepRule
    columns: dict[str, NDArray[Any]]
    """Fields (N,) of `REQUEST`."""
    prefill_lane: int = NO_LANE
    """`Rank.lane` before the first token; `NO_LANE` if it changes with the request."""
    decode_lane: int = NO_LANE
    numbers: dict[str, float] = field(default_factory=dict)
    """Fields of `LIMITS` of this policy alone."""


@jit
def ceil_div(number, divisor):
    return -(-number // divisor)


@jit
def enter_queue(waiting, request, row, now_s):
    if request.starves_s <= now_s:
        request.key = -np.inf
    request.waits = True
    request.left = request.context
    heappush(waiting, (request.key, request.turn, row))


@jit
def insert(prefilling, rank):
    place = len(prefilling)
    prefilling.append(rank)
    while place and prefilling[place - 1] > rank:
        prefilling[place] = prefilling[place - 1]
        place -= 1
    prefilling[place] = rank


@jit
def count_decode(lanes, growing, request, change):
    lane = lanes[request.lane]
    lane.count += change
    lane.context += change * request.context
    growing[request.lane, request.bucket] += change


@jit
def last_resident(requests, prefilling, decoding, above, below):
    """Return the greatest rank of a resident between two ranks; `above` where there is none."""
    found = above
    for rank in prefilling:
        if found < rank < below:
            found = rank
    for row in decoding:
        rank = (requests[row].level, requests[row].turn, row)
        if found < rank < below:
            found = rank
    return found


@jit
def evict(requests, lanes, growing, limits, waiting, prefilling, decoding, state, row):
    """Evict a decode or the last prefill, and free its blocks."""
    request = requests[row]
    if request.left > 0:
        prefilling.pop()
        tokens = request.context
    else:
        decoding.remove(row)
        count_decode(lanes, growing, request, -1)
        request.context += state.common
        request.own_tick = max(request.own_tick, state.common_tick)
        # The KV of the last token is computed with the next one.
        tokens = request.context - 1
        if limits.prefill_lane != NO_LANE:
            request.lane = limits.prefill_lane
    state.used -= ceil_div(tokens, limits.block_tokens)
    state.evictions += 1
    request.preemptions += 1
    request.evicted_s = state.now_s
    state.waiting += 1
    enter_queue(waiting, request, row, state.now_s)
