"""The ranks of round-robin and PASCAL in the compiled loop, and their admissions.

Round-robin is PASCAL without phases. Requests are served in order of level (queue and quanta used),
time of entry and row, and evicted in the reverse order.
"""

from heapq import heappop

import numpy as np

from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.compiled.residents import (
    LAST,
    NO_LIMIT,
    QUANTA,
    CompiledPolicy,
    ceil_div,
    evict,
    insert,
    jit,
    last_resident,
)
from scheduler_adapters.workload.requests import Requests

_REASONING, _DEMOTED, _ANSWERING = range(3)
_LEVELS = 2**40
"""More than the quanta of any request."""


def quanta_policy(requests: Requests, policy: Policy) -> CompiledPolicy | None:
    """Return the compiled part of round-robin or PASCAL; None for any other, and host memory."""
    if type(policy) is RoundRobin:
        thinking = demoted_at = np.full(len(requests), NO_LIMIT)
    elif type(policy) is Pascal:
        thinking = requests.reasoning_tokens
        demoted_at = np.maximum(0, policy.demote_above_tokens + 1 - requests.prompt_tokens)
    else:
        return None
    if policy.rule.offload:
        return None
    return CompiledPolicy(
        kind=QUANTA,
        rule=policy.rule,
        columns={"thinking": thinking, "demoted_at": demoted_at},
        numbers={"quantum_tokens": policy.quantum_tokens},
    )


@jit
def enter_level(request, quantum, generated, now_s):
    """Compute the rank of a request; return the context at which it changes or is complete."""
    if request.phase == _ANSWERING or (generated > 0 and generated >= request.thinking):
        phase, since, until = _ANSWERING, request.thinking, NO_LIMIT
    elif generated >= request.demoted_at:
        phase, since, until = _DEMOTED, request.demoted_at, request.thinking
    else:
        phase, since, until = _REASONING, 0, min(request.demoted_at, request.thinking)
    quanta = (generated - since) // quantum
    lane = 0 if phase == _REASONING else 1
    level = float(lane * _LEVELS + quanta)
    if phase != request.phase or level != request.level:
        request.turn = now_s
    request.phase, request.lane, request.level, request.key = phase, lane, level, level
    return min(request.end, request.prompt + min(since + (quanta + 1) * quantum, until))


@jit
def displace(requests, lanes, growing, limits, waiting, prefilling, decoding, state):
    """Admit the first waiting requests; where blocks are missing, evict the last residents."""
    size = limits.block_tokens
    while len(waiting):
        first = waiting[0]
        request = requests[first[2]]
        if request.evicted_s == state.now_s:
            break
        room = limits.blocks - state.used - ceil_div(request.context + 1, size)
        room -= growing[0, state.common % size] + growing[1, state.common % size]
        # Residents of the same level and turn stay.
        above, last, victims = (first[0], first[1], NO_LIMIT), LAST, 0
        while room < 0:
            victim = last_resident(requests, prefilling, decoding, above, last)
            if victim == above:
                break
            resident = requests[victim[2]]
            room += ceil_div(resident.context + (0 if resident.left else state.common), size)
            last = victim
            victims += 1
        seats = limits.seats - len(prefilling) - len(decoding) + victims
        if room < 0 or seats <= 0:
            break
        for _ in range(victims):
            victim = last_resident(requests, prefilling, decoding, above, LAST)
            evict(requests, lanes, growing, limits, waiting, prefilling, decoding, state, victim[2])
        heappop(waiting)
        request.waits = False
        state.used += ceil_div(request.context, size)
        insert(prefilling, first)
