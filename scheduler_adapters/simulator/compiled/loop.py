"""The rules of `reference.py` for policies whose ranks never change, compiled with numba.

Such a policy has `Traits.is_static`. It is asked once per request and phase beforehand, its answers
become arrays (`static_ranks.py`), and the whole run is one compiled loop: all decodes are one
`DecodeBatch`. Other runs are left to `slai.py` and to plain Python (`engine/`).

The loop is one function on purpose: cut into a dozen, inlined or not, the same code takes 3.4 to
5.7 times as long, because numba counts references at each array in a call.
"""

# numba infers the types: typed code would only say float64 everywhere.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,arg-type,misc"

from collections.abc import Callable
from concurrent.futures import Future
from heapq import heappop, heappush
from threading import Thread
from typing import Any

import numpy as np
from numba import njit

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.compiled.static_ranks import static_ranks
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AFFINE, KERNELS, ROOFLINE, TABLES
from scheduler_adapters.timeline.columns import timeline_of_columns
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import StepRule
from scheduler_adapters.workload.requests import Ints, Requests

DONE, LEAVE_TO_PYTHON = 0, 1
WAITING, RESIDENT, FINISHED = 0, 1, 2
NO_LIMIT = 2**60


def run_compiled(requests: Requests, policy: Policy, instance: Instance) -> Timeline | None:
    """Return the timeline, or None where this run needs the engine in plain Python."""
    latency = instance.latency.compiled()
    ranks = None if latency is None else static_ranks(requests, policy, instance)
    if ranks is None:
        return None
    rule = ranks.rule
    limits = limits_of(
        instance,
        rule,
        *map(as_number, (rule.chunk, rule.max_prefills, rule.max_admissions)),
        *(rule.mixed, rule.whole_prompts, rule.padded_tokens, ranks.prefill_first),
    )
    if limits[SEATS] > limits[BUDGET]:
        return None  # decodes would have to take turns
    return run_loop(_run, requests, instance, ranks.key, ranks.starves_s, limits, latency)


def limits_of(instance: Instance, rule: StepRule, *others: int) -> Ints:
    """Return the limits of an instance joined with those of a rule, and others behind them."""
    limits = (
        instance.kv_blocks,
        instance.watermark_blocks,
        instance.decode_headroom_blocks,
        instance.block_tokens,
        min(as_number(instance.max_tokens), as_number(rule.max_tokens)),
        min(instance.max_num_seqs, as_number(rule.max_resident)),
    )
    return np.array([*limits, *others], dtype=np.int64)


def run_loop(
    loop: Callable[..., Any], requests: Requests, instance: Instance, *arguments: Any
) -> Timeline | None:
    """Return the timeline of a compiled loop, or None where it leaves the run to plain Python."""
    prompt_tokens, output_tokens = requests.prompt_tokens, requests.output_tokens
    rejected = instance.cannot_hold(prompt_tokens, output_tokens)
    status, columns, ticks, runs = _in_a_thread(
        loop, requests.arrival_s, prompt_tokens, output_tokens, rejected, *arguments
    )
    if status != DONE:
        return None
    return timeline_of_columns(requests, rejected, *columns, tick_s=ticks, runs=runs)


def _in_a_thread(loop: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of compiled code, run in a thread of its own.

    Compiled code cannot be interrupted; the thread that waits for it can. The thread of the code
    ends with the loop or with the process.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(loop(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=run, daemon=True).start()
    return outcome.result()


def as_number(limit: int | None) -> int:
    """Return the limit, or for None a number beyond any."""
    return NO_LIMIT if limit is None else limit


BLOCKS, WATERMARK, HEADROOM, BLOCK_TOKENS, BUDGET, SEATS = range(6)
CHUNK, MAX_PREFILLS, MAX_ADMISSIONS, MIXED, WHOLE, PADDED, PREFILL_FIRST = range(6, 13)
"""Places in the array of limits."""

jit: Any = njit(cache=True, nogil=True)
"""Compiles, and keeps the code until this file changes: after an edit of a function that is called
by another file's loop, touch that file too."""


@jit
def ceil_div(number, divisor):
    return -(-number // divisor)


@jit
def step_s(kind, numbers, dense, decode, prefill, count, context, chunks, num_chunks):
    """Return the seconds of a step by one of the latency models; -1 where its tables end.

    Of each chunk: the tokens before it, and its own.
    """
    tokens = count
    for i in range(num_chunks):
        tokens += chunks[i, 1]
    if kind == TABLES:
        return _table_s(numbers, dense, decode, prefill, count, context, tokens, chunks, num_chunks)
    if kind == KERNELS:
        return _kernels_s(
            numbers, dense, decode, prefill, count, context, tokens, chunks, num_chunks
        )
    pairs = 0.0
    for i in range(num_chunks):
        pairs += chunks[i, 1] * (chunks[i, 0] + chunks[i, 1] / 2)
    if kind == AFFINE:
        return numbers[0] + tokens * numbers[1] + context * numbers[2] + pairs * numbers[3]
    if kind == ROOFLINE:
        base_s = numbers[0] + max(numbers[1], tokens * numbers[2])
        return base_s + context * numbers[3] + pairs * numbers[4]
    return -1.0


@jit
def _table_s(numbers, dense, decode, prefill, count, context, tokens, chunks, num_chunks):
    if tokens >= len(dense):
        return -1.0
    layer_ms = dense[tokens]
    if count:
        column = ceil_div(context // count, 64)
        if count >= decode.shape[0] or column >= decode.shape[1]:
            return -1.0
        layer_ms += decode[count, column]
    if num_chunks:
        row, squares = 0, 0
        for i in range(num_chunks):
            row += ceil_div(chunks[i, 0], 64)
            squares += chunks[i, 1] * chunks[i, 1]
        column = int(np.rint(np.sqrt(squares)))
        if row >= prefill.shape[0] or column >= prefill.shape[1]:
            return -1.0
        attention_ms = prefill[row, column]
        layer_ms += attention_ms * 1.1 if num_chunks > 1 else attention_ms
    return layer_ms * numbers[0] * 1e-3


@jit
def _kernels_s(
    by_sequences, by_tokens, decode, prefill, count, context, tokens, chunks, num_chunks
):
    sequences = count + num_chunks
    if tokens >= len(by_tokens) or sequences >= len(by_sequences):
        return -1.0
    seconds = 0.0
    for i in range(num_chunks):
        seconds += _grid_at(prefill, chunks[i, 1], chunks[i, 0])
    if count:
        seconds += _grid_at(decode, count, context / count)
    return seconds + by_tokens[tokens] + by_sequences[sequences]


@jit
def _grid_at(packed, x, y):
    """`Grid2.at` of a packed grid, whose axes start at 1 and are open at both ends."""
    row = 2 + np.searchsorted(packed[2:-1, 0], x, "right")
    column = 2 + np.searchsorted(packed[0, 2:-1], y, "right")
    share_x = _share(packed[row - 1, 0], packed[row, 0], x)
    share_y = _share(packed[0, column - 1], packed[0, column], y)
    first = packed[row - 1, column - 1]
    at_low = first + share_y * (packed[row - 1, column] - first)
    first = packed[row, column - 1]
    at_high = first + share_y * (packed[row, column] - first)
    return at_low + share_x * (at_high - at_low)


@jit
def _share(start, end, value):
    return (value - start) / (end - start) if value > start else 0.0


@jit
def _cost(padded, num_chunks, longest, tokens):
    """Return the budget that a prefill of `tokens` takes beside chunks up to `longest`."""
    if not padded:
        return tokens
    return (num_chunks + 1) * max(tokens, longest) - num_chunks * longest


@jit
def _chunk(limits, tokens, budget, num_placed, num_chunks, longest):
    """Return how many of `tokens` a further prefill computes in this step; 0 for none."""
    if (num_placed and not limits[MIXED]) or num_chunks >= limits[MAX_PREFILLS]:
        return 0
    if limits[WHOLE]:
        fits = num_chunks == 0 or _cost(limits[PADDED], num_chunks, longest, tokens) <= budget
        return tokens if fits else 0
    return max(0, min(tokens, limits[CHUNK], budget))


@jit
def _write_runs(runs, row, joined, counter, run_counters, run_ticks):
    """Record the ticks of a member's steps: those with a counter in (joined, counter]."""
    since = max(0, len(run_counters) - 1)
    while since > 0 and run_counters[since] > joined + 1:
        since -= 1
    for i in range(since, len(run_counters)):
        start = max(run_counters[i], joined + 1)
        end = run_counters[i + 1] - 1 if i + 1 < len(run_counters) else counter
        if start <= end:
            runs.append(
                (row, run_ticks[i] + start - run_counters[i], run_ticks[i] + end - run_counters[i])
            )


@jit
def joined_runs(runs, count_all):
    """Return the runs (R, 3) in order of (row, tick); those without a gap between them become one.

    The runs of one row come by tick.
    """
    places = np.zeros(count_all + 1, np.int64)
    for row, _, _ in runs:
        places[row + 1] += 1
    places = np.cumsum(places)
    columns = np.empty((len(runs), 3), np.int64)
    for row, first, last in runs:
        columns[places[row], 0], columns[places[row], 1], columns[places[row], 2] = row, first, last
        places[row] += 1
    count = 0
    for i in range(len(columns)):
        if (
            count
            and columns[count - 1, 0] == columns[i, 0]
            and columns[count - 1, 2] + 1 == columns[i, 1]
        ):
            columns[count - 1, 2] = columns[i, 2]
        else:
            columns[count] = columns[i]
            count += 1
    return columns[:count]


@jit
def _run(arrival_s, prompt, output, rejected, first_key, starves_s, limits, latency):
    kind, numbers, dense, decode, prefill = latency
    count_all = len(arrival_s)
    size = limits[BLOCK_TOKENS]
    scheduled_s = np.full(count_all, np.nan)
    first_token_s = np.full(count_all, np.nan)
    finished_s = np.full(count_all, np.nan)
    preemptions = np.zeros(count_all, np.int64)
    state = np.zeros(count_all, np.int8)
    key = first_key.copy()
    context = prompt.copy()  # of decodes: less the batch's counter
    left = np.zeros(count_all, np.int64)
    joined = np.zeros(count_all, np.int64)
    growth = np.zeros(size, np.int64)
    events = [(np.int64(0), np.int64(0))][:0]
    waiting = [(0.0, np.int64(0))][:0]
    prefilling = [np.int64(0)][:0]  # rows, ascending
    decoding = [np.int64(0)][:0]  # rows, for walks only; the finished stay until the next walk
    runs = [(np.int64(0), np.int64(0), np.int64(0))][:0]
    run_counters = [np.int64(0)][:0]
    run_ticks = [np.int64(0)][:0]
    ticks = [0.0][:0]
    chunk_rows = np.zeros(limits[SEATS] + 1, np.int64)
    chunks = np.zeros((limits[SEATS] + 1, 2), np.int64)  # tokens before, tokens
    now_s, used, counter, num_decodes, decode_context = 0.0, 0, 0, 0, 0
    num_residents, num_waiting, coming, starving = 0, 0, 0, 0
    last_decode_tick = -2
    status = DONE
    while True:
        while coming < count_all and rejected[coming]:
            coming += 1
        if coming == count_all and num_waiting == 0 and num_residents == 0:
            break
        if num_waiting == 0 and num_residents == 0 and arrival_s[coming] > now_s:
            now_s = arrival_s[coming]
        while coming < count_all and arrival_s[coming] <= now_s:
            if not rejected[coming]:
                if starves_s[coming] <= now_s:
                    key[coming] = -np.inf
                heappush(waiting, (key[coming], coming))
                num_waiting += 1
            coming += 1
        while starving < coming and starves_s[starving] <= now_s:
            if state[starving] == WAITING and key[starving] > -np.inf and not rejected[starving]:
                key[starving] = -np.inf
                heappush(waiting, (key[starving], starving))
            starving += 1
        budget = limits[BUDGET]
        num_placed, num_chunks, longest, admissions = 0, 0, 0, 0
        closed = False
        for half in range(2):
            if (half == 1) == limits[PREFILL_FIRST]:
                if num_decodes == 0 or (num_chunks and not limits[MIXED]):
                    continue
                needed = growth[counter % size]
                if used + needed + limits[HEADROOM] <= limits[BLOCKS]:
                    used += needed
                else:
                    # One by one, by arrival; the latest arrival is evicted.
                    alive = [r for r in decoding if joined[r] >= 0]
                    decoding = sorted(alive)
                    place = 0
                    while place < len(decoding):
                        row = decoding[place]
                        grows = (context[row] + counter - 1) % size == 0
                        needed = 1 if grows else 0
                        gone = False
                        while limits[BLOCKS] - used < max(needed, limits[HEADROOM]):
                            victim = decoding[-1]
                            if len(prefilling) and prefilling[-1] > victim:
                                victim = prefilling.pop()
                                used -= ceil_div(context[victim], size)
                            else:
                                decoding.pop()
                                _write_runs(
                                    runs, victim, joined[victim], counter, run_counters, run_ticks
                                )
                                joined[victim] = -1
                                total = context[victim] + counter
                                growth[(counter + 1 - total) % size] -= 1
                                used -= ceil_div(total - 1, size)
                                context[victim] = total
                                decode_context -= total
                                num_decodes -= 1
                                gone = victim == row
                            state[victim] = WAITING
                            num_residents -= 1
                            num_waiting += 1
                            preemptions[victim] += 1
                            if starves_s[victim] <= now_s:
                                key[victim] = -np.inf
                            heappush(waiting, (key[victim], victim))
                            if gone:
                                break
                        if gone:
                            break
                        used += needed
                        place += 1
                num_placed = num_decodes
                budget -= num_decodes
                continue
            for row in prefilling:
                chunk = _chunk(limits, left[row], budget, num_placed, num_chunks, longest)
                if chunk == 0:
                    break
                budget -= _cost(limits[PADDED], num_chunks, longest, chunk)
                longest = max(longest, chunk)
                chunk_rows[num_chunks] = row
                chunks[num_chunks, 1] = chunk
                num_chunks += 1
            while len(waiting) and not closed:
                top_key, row = waiting[0]
                if state[row] != WAITING or key[row] != top_key:
                    heappop(waiting)
                    continue
                chunk = _chunk(limits, context[row], budget, num_placed, num_chunks, longest)
                blocks = ceil_div(context[row], size)
                if (
                    num_residents >= limits[SEATS]
                    or admissions >= limits[MAX_ADMISSIONS]
                    or used + blocks + limits[WATERMARK] > limits[BLOCKS]
                    or chunk == 0
                ):
                    closed = True
                    break
                heappop(waiting)
                state[row] = RESIDENT
                left[row] = context[row]
                used += blocks
                num_residents += 1
                num_waiting -= 1
                admissions += 1
                budget -= _cost(limits[PADDED], num_chunks, longest, chunk)
                longest = max(longest, chunk)
                chunk_rows[num_chunks] = row
                chunks[num_chunks, 1] = chunk
                num_chunks += 1
        if num_placed == 0 and num_chunks == 0:
            status = LEAVE_TO_PYTHON
            break
        for i in range(num_chunks):
            row = chunk_rows[i]
            chunks[i, 0] = context[row] - left[row]
            if np.isnan(scheduled_s[row]):
                scheduled_s[row] = now_s
        step_context = decode_context if num_placed else 0
        duration_s = step_s(
            kind, numbers, dense, decode, prefill, num_placed, step_context, chunks, num_chunks
        )
        if not duration_s > 0:
            status = LEAVE_TO_PYTHON
            break
        now_s = now_s + duration_s
        tick = len(ticks)
        ticks.append(now_s)
        if num_placed:
            counter += 1
            decode_context += num_decodes
            if last_decode_tick != tick - 1:
                run_counters.append(counter)
                run_ticks.append(tick)
            last_decode_tick = tick
            while len(events) and events[0][0] <= counter:
                _, row = heappop(events)
                if (
                    joined[row] < 0
                    or state[row] != RESIDENT
                    or context[row] + counter != prompt[row] + output[row]
                ):
                    continue
                _write_runs(runs, row, joined[row], counter, run_counters, run_ticks)
                joined[row] = -1
                total = context[row] + counter
                growth[(counter + 1 - total) % size] -= 1
                used -= ceil_div(total - 1, size)
                decode_context -= total
                num_decodes -= 1
                num_residents -= 1
                state[row] = FINISHED
                finished_s[row] = now_s
        for i in range(num_chunks):
            row = chunk_rows[i]
            is_first = left[row] == context[row]
            left[row] -= chunks[i, 1]
            if left[row]:
                if is_first:
                    place = len(prefilling)
                    prefilling.append(row)
                    while place and prefilling[place - 1] > row:
                        prefilling[place] = prefilling[place - 1]
                        place -= 1
                    prefilling[place] = row
                continue
            if not is_first:
                prefilling.remove(row)
            runs.append((row, tick, tick))
            context[row] += 1
            if context[row] == prompt[row] + 1:
                first_token_s[row] = now_s
            if context[row] == prompt[row] + output[row]:
                used -= ceil_div(context[row] - 1, size)
                num_residents -= 1
                state[row] = FINISHED
                finished_s[row] = now_s
                continue
            growth[(counter + 1 - context[row]) % size] += 1
            decode_context += context[row]
            num_decodes += 1
            joined[row] = counter
            heappush(events, (counter + prompt[row] + output[row] - context[row], row))
            context[row] -= counter
            decoding.append(row)
        if len(decoding) > 4 * num_decodes + 64:
            decoding = [r for r in decoding if joined[r] >= 0 and state[r] == RESIDENT]
    columns = scheduled_s, first_token_s, finished_s, preemptions
    return status, columns, np.array(ticks), joined_runs(runs, count_all)
