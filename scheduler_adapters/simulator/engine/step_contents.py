"""The step that is being filled or run: decodes, prefills, the budget that is left."""

from scheduler_adapters.planner.step_budget import StepBudget
from scheduler_adapters.simulator.engine.request_state import DecodeBatch, RequestState
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.views import UNLIMITED, StepRule


class StepContents:
    """One step of an instance under a rule of the policy."""

    # Slots, as every step reads them: 4% of the time of a run.
    __slots__ = (
        "batches", "budget", "chunks", "instance", "is_steady", "offloads", "repeats", "rule",
        "walked",
    )  # fmt: skip

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.repeats = False
        """True if the next step is filled like this one: nothing has changed since it started.
        Each change of what a step is filled from clears this."""
        self.batches: list[DecodeBatch] = []
        self.chunks: list[tuple[RequestState, int]] = []
        """Prefills, with their tokens in this step."""
        self.walked: set[int] = set()
        """Rows of decodes placed one by one, whose batches are placed after them."""
        self.is_steady = True
        """True for a step that could be repeated as it is."""
        self.set_rule(UNLIMITED)

    def set_rule(self, rule: StepRule) -> None:
        """Join a rule's limits with the engine's own."""
        self.rule = rule
        self.budget = StepBudget(
            rule,
            max_tokens=self.instance.max_tokens,
            max_num_seqs=self.instance.max_num_seqs,
            exceeds_budget=True,
        )
        self.offloads = rule.offload and self.instance.host is not None
        """True if KV of evicted requests is copied to the host."""

    def contains(self, request: RequestState) -> bool:
        """Return whether a resident is in the step already."""
        if request.batch is not None:
            return request.row in self.walked or request.batch in self.batches
        return any(other is request for other, _ in self.chunks)
