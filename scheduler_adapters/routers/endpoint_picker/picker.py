"""Choices of an endpoint for requests that a gateway holds: score, placement, booking."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Final

from lengthwise.errors import ServiceOverloaded, ServiceUnavailable
from lengthwise.settings import Count, Range, settings
from lengthwise.tables import prompt_text
from scheduler_adapters.routers.legs import Leg
from scheduler_adapters.routers.prompt_scores import RoutingScores
from scheduler_adapters.routers.routing import Routing

_MAX_SCORED_BYTES: Final = 256 << 10
"""Longest body whose prompt is scored: parsing it takes a few milliseconds of the process."""
NUM_ALTERNATIVES: Final = 2
"""Further endpoints named behind the chosen one, for a gateway's retries."""


@settings
class PickerLimits:
    """Limits on the requests that a picker holds."""

    max_streams: Count = 10_000
    """Most requests between their choice and the end of their stream; others get status 429."""
    max_body_bytes: Count = 4 << 20
    """Longest body that is read before the choice. Of a longer one this part counts as the prompt,
    and there is no score."""
    bytes_per_token: Annotated[float, Range(above=0, below=1e6)] = 4.0
    """Bytes of a body per token of its prompt, for placements that count tokens."""


class EndpointPicker:
    """Endpoints for requests, as a placement decides on scraped reports and own bookings."""

    def __init__(
        self,
        routing: Routing,
        scores: RoutingScores | None = None,
        limits: PickerLimits | None = None,
    ) -> None:
        self.routing, self.scores, self.limits = routing, scores, limits or PickerLimits()
        routing.queue_length = self._num_open_at
        self.names: list[str] = []
        self.open: dict[str, dict[int, Leg]] = defaultdict(dict)
        """Requests whose stream has not ended, by endpoint, in the order of their choices."""
        self.num_open = self.num_reports = 0
        self.counts: Counter[str] = Counter()
        """Requests refused, and choices by their decider, as `Routed` names it."""
        self._reports: dict[str, dict[str, Any]] = {}

    def update(self, names: Sequence[str]) -> None:
        """Choose among these endpoints from now on."""
        self.names = list(names)
        self._reports = {name: self._reports.get(name, {}) for name in names}
        self.routing.update(self._reports)

    def received(self, name: str, report: dict[str, Any], begun: int) -> None:
        """Take a report of an endpoint that shows the choices up to number `begun`."""
        self.num_reports += 1
        # Engines export no prompts of waiting requests. They start requests in order, so the newest
        # ones wait.
        older = (one for i, one in reversed(self.open[name].items()) if i <= begun)
        waiting = [one.prompt_tokens for one in islice(older, report["num_waiting"])]
        self._reports[name] = report | {
            "number": self.num_reports,
            "arrived": {self.routing.router: begun},
            "waiting_prompt_tokens": sum(waiting),
            "prefill_tokens": sum(waiting),
            "prefill_squares": sum(tokens**2 for tokens in waiting),
        }
        self.routing.update(self._reports)

    async def pick(
        self, body: bytes, num_bytes: int, among: Sequence[str] | None = None
    ) -> tuple[Leg, list[str]]:
        """Return a request with a body of `num_bytes`, booked, and its endpoints, the chosen first.

        Args:
            body: read for a score; empty: no score.
            among: endpoints or hosts from which the gateway wants one; None: all.

        Raises:
            ServiceUnavailable: no endpoint.
            ServiceOverloaded: too many requests in progress.
        """
        arrival_s, found = self.routing.clock(), None
        if self.scores is not None and 0 < len(body) <= _MAX_SCORED_BYTES:
            found = await self.scores.of(prompt_in(body))
        names = self.names if among is None else _only(self.names, among)
        if not names or self.num_open >= self.limits.max_streams:
            self.counts["refused"] += 1
            if not names:
                raise ServiceUnavailable("no endpoint is ready, or none that the gateway allows")
            raise ServiceOverloaded(f"{self.num_open} requests are in progress; try again later")
        tokens = max(1, round(num_bytes / self.limits.bytes_per_token))
        score, quantiles = found or (None, ())
        leg = Leg(
            request_id=str(self.routing.num_routed),
            token_ids=range(tokens),
            prompt_tokens=tokens,
            is_thinking=True,
            max_tokens=1,
            arrival_s=arrival_s,
            score=score,
            quantiles=quantiles,
        )
        chosen = self.routing.choose(leg.request_id, leg, names)
        self.counts[leg.routed.decided_by if leg.routed else ""] += 1
        others = sorted((name for name in names if name != chosen), key=self._num_open_at)
        self.open[chosen][self.routing.num_routed] = leg
        self.num_open += 1
        return leg, [chosen, *others[:NUM_ALTERNATIVES]]

    def release(self, leg: Leg) -> None:
        """End the booking of a request: its stream has ended."""
        if leg.routed is not None:
            del self.open[leg.routed.replica][leg.routed.number]
            self.num_open -= 1
            self.routing.views.cancel(leg.request_id)

    def _num_open_at(self, name: str) -> int:
        return len(self.open[name])


def prompt_in(body: bytes) -> str | None:
    """Return the text to score in a body of OpenAI's or Anthropic's API; None without one."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    for key, text_of in (("messages", prompt_text.of_chat), ("input", prompt_text.of_response)):
        if key in content:
            return text_of(content)
    prompt = content.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    return prompt_text.scored_text(prompt)


def _only(names: Sequence[str], among: Sequence[str]) -> list[str]:
    """Return the endpoints that a gateway allows, each by IP:PORT or by its host alone."""
    allowed = set(among)
    return [n for n in names if n in allowed or n.rpartition(":")[0].strip("[]") in allowed]
