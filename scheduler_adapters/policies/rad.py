"""RAD: throughput-optimal cycles of prefills in chunks of one tile, then decodes of a full tile."""

from lengthwise.settings import Count, checked
from scheduler_adapters.policy import Policy
from scheduler_adapters.views import LoadView, Phase, Rank, RequestView, StepRule

_PREFILL = Rank(lane=0)
_DECODE = Rank(lane=1)


class RAD(Policy):
    """Prefills one request at a time until a tile of decodes is full, then decodes all of them.

    Args:
        max_started: requests started per cycle (n), by the bound of the theorem.
        tile: decodes of a full step (t_col).
        chunk: prefill tokens per step (t_lcm).

    Source: RAD, Algorithm 1, with two changes. Chunks are one token longer, and the count of
    started requests is also reset when a whole cycle ends at prefill; those requests count.
    """

    name = "rad"

    @checked
    def __init__(self, *, max_started: Count = 512, tile: Count = 128, chunk: Count = 256) -> None:
        self.max_started = max_started
        self.tile = tile
        # Lanes put prefill first, and unmixed steps decode where no prefill can be had.
        self.prefill = StepRule(
            max_prefills=1, max_admissions=1, max_decodes=tile, chunk=chunk, mixed=False
        )
        self.finish_prefill = StepRule(max_prefills=1, max_admissions=0, chunk=chunk, mixed=False)
        self.decode = StepRule(max_prefills=0, max_decodes=tile)
        self.started_before_cycle = 0
        self.is_decoding = False
        """The present step decodes."""

    def rank(self, request: RequestView, load: LoadView) -> Rank:
        return _PREFILL if request.phase <= Phase.PREFILL else _DECODE

    def step_rule(self, load: LoadView) -> StepRule:
        if load.num_prefilling:
            return self.finish_prefill
        started = load.num_started - self.started_before_cycle
        if not load.num_decoding and (self.is_decoding or started >= self.max_started):
            self.started_before_cycle, started = load.num_started, 0
        is_full = load.num_decoding >= self.tile or started >= self.max_started
        self.is_decoding = is_full or (load.num_decoding > 0 and not load.num_waiting)
        return self.decode if self.is_decoding else self.prefill


class RADTwin(RAD):
    """The appendix scheduler: prefill a whole cycle, then decode it, a tile at a time.

    Source: RAD, Algorithm 2. It reports a first token at activation, here at the prefill's end.
    """

    name = "rad-twin"

    def step_rule(self, load: LoadView) -> StepRule:
        if load.num_prefilling:
            return self.finish_prefill
        if not load.num_decoding:
            self.started_before_cycle = load.num_started
            self.is_decoding = False
        started = load.num_started - self.started_before_cycle
        if not load.num_waiting or started >= self.max_started:
            self.is_decoding = True
        return self.decode if self.is_decoding else self.prefill
