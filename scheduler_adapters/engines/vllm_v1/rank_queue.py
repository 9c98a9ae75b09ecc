"""vLLM's waiting queue in rank order, with the engine's own queue interface."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import Any, Final

from scheduler_adapters.engines.vllm_v1.planner_view import VllmMemory
from scheduler_adapters.engines.vllm_v1.versions import (
    Request,
    RequestQueue,
    RequestStatus,
    holds_blocks,
    probe_classes,
)
from scheduler_adapters.planner.planner import Planner
from scheduler_adapters.planner.ranked_queue import RankedQueue, RankedRequest
from scheduler_adapters.planner.request_annotations import annotations_of_id
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.views import Phase

_RUNNING: Final = RequestStatus.RUNNING
_MOST_HARMLESS: Final = 2048
"""Characters of a grammar's text, below the length of most answers."""
_FORCING: Final = re.compile(r"""["'](min\w+|pattern)["']""").search


class RankQueue(RequestQueue):  # type: ignore[misc]
    """vLLM's waiting queue in rank order.

    The engine prepends a preempted request, which is ranked anew. It also prepends requests that it
    could not start in this step (a grammar still compiling); these return to their former place.
    `waiting`: given for vLLM's second queue, which is served before all others, unknown to the
    planner. Requests without KV blocks return from it to their place in `waiting`.
    """

    def __init__(self, tracker: RequestTracker, waiting: "RankQueue | None" = None) -> None:
        self._tracker = tracker
        self._waiting = waiting
        self._shares = tracker.shares if waiting is None else None
        self.queue: RankedQueue[Request] = RankedQueue(self._shares)
        self.planner: Planner[Request] | None = None
        self.offered: list[Request] | None = None
        """While a planned step is scheduled: the only requests shown to the engine, in reverse."""
        self._popped: list[Request] = []
        self.memory: VllmMemory | None = None
        """For a policy that reads the prefix cache."""

    def add_request(self, request: Request) -> None:
        if self._waiting is not None and not holds_blocks(request):
            self._waiting.add_request(request)
            return
        tracked = _tracked(request, self._tracker, self.memory)
        if self._shares is not None:
            self._shares.returns(tracked.view)
        if tracked.view.phase is not Phase.WAITING:  # a session between two turns
            tracked.view.phase = Phase.WAITING
            self._tracker.rerank(tracked)
        self.queue.add(request)

    def prepend_request(self, request: Request) -> None:
        if self.planner is not None:
            self.planner.residents.left(request)
        self._tracker.requeue(
            _tracked(request, self._tracker),
            generated_tokens=request.num_output_tokens,
            preemptions=request.num_preemptions,
        )
        self.queue.add(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Request:
        return self.queue.first() if self.offered is None else self.offered[-1]

    def pop_request(self) -> Request:
        if self.offered is None:
            request = self.queue.pop_first()
        else:
            request = self.offered.pop()
            self.queue.remove(number_of(request))
        if self._shares is not None:
            self._shares.starts(request.lengthwise.view, request._output_token_ids.__len__)
        self._popped.append(request)
        return request

    def take_admitted(self) -> list[Request]:
        """Return the running requests among those popped since the last call."""
        popped, self._popped = self._popped, []
        return [request for request in popped if request.status is _RUNNING]

    def remove_request(self, request: Request) -> None:
        if hasattr(request, "lengthwise"):
            self.queue.remove(number_of(request))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def __bool__(self) -> bool:
        return bool(self.queue.entries if self.offered is None else self.offered)

    def __len__(self) -> int:
        return len(self.queue.entries) + len(self.queue.held)

    def __iter__(self) -> Iterator[Request]:
        return chain(self.queue, self.queue.held.values())

    def __getitem__(self, index: int) -> Request:
        return list(self)[index]


def number_of(request: Request) -> int:
    return request.lengthwise.view.number  # type: ignore[no-any-return]


def _tracked(
    request: Request, tracker: RequestTracker, memory: VllmMemory | None = None
) -> RankedRequest:
    if not hasattr(request, "lengthwise"):
        carried = (request.sampling_params and request.sampling_params.extra_args) or {}
        request.lengthwise = tracker.track(
            request.request_id,
            # The front end stamps wall clock, the engine counts monotonic seconds.
            age_s=time.time() - request.arrival_time,
            prompt_tokens=request.num_prompt_tokens,
            carried=annotations_of_id(request.request_id) | carried,
            priority=request.priority,
            prompt=_text_ids(request),
            limits=limits_of(request.sampling_params),
            cached_tokens=0 if memory is None else memory.cached_tokens(request),
        )
    return request.lengthwise  # type: ignore[no-any-return]


def _text_ids(request: Request) -> Sequence[int]:
    """Return the token ids of a prompt without those in the place of images and embeddings."""
    ids, features = request.prompt_token_ids or (), getattr(request, "mm_features", None)
    is_text = getattr(request, "prompt_is_token_ids", None)
    if not features and is_text is None:
        return ids
    places = [feature.mm_position for feature in features or ()]
    left_out = {n for each in places for n in range(each.offset, each.offset + each.length)}
    left_out |= {n for n, is_id in enumerate(is_text or ()) if not is_id}
    return [token for number, token in enumerate(ids) if number not in left_out]


def limits_of(params: Any) -> tuple[float, float]:
    """Return the least and the most output tokens of a request with these sampling parameters.

    The most are the least as well where the request may force an answer to go on: by `ignore_eos`,
    biased or allowed tokens, or a grammar. A choice, or a JSON schema without minimum and pattern,
    can force no more than its own text.
    """
    if params is None:
        return 0, inf
    most = inf if params.max_tokens is None else params.max_tokens
    is_forced, grammar = params.ignore_eos, params.structured_outputs
    if grammar is not None:
        names = ("regex", "grammar", "structural_tag", "whitespace_pattern")
        is_forced = is_forced or any(getattr(grammar, name) is not None for name in names)
        text = str(grammar.json or grammar.choice)
        is_forced = is_forced or len(text) > _MOST_HARMLESS or bool(_FORCING(text))
    is_forced = is_forced or bool(params.logit_bias or params.allowed_token_ids)
    return most if is_forced else params.min_tokens, most


probe_classes(RankQueue)
