"""The step that is being filled: limits of rule and engine together, and the requests in it."""

from scheduler_adapters.simulator.engine.step_contents import StepContents
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.views import StepRule

INSTANCE = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=9, max_num_seqs=3, max_tokens=20)


def test_the_tighter_limit_holds_and_only_a_host_gets_kv_copies():
    step = StepContents(INSTANCE)
    assert (step.budget.max_tokens, step.budget.seats, step.offloads) == (20, 3, False)
    rule = StepRule(max_tokens=30, max_resident=2, offload=True)
    step.set_rule(rule)
    assert (step.budget.max_tokens, step.budget.seats, step.offloads) == (20, 2, False)
    hosted = StepContents(
        Instance(latency=INSTANCE.latency, kv_blocks=9, host=HostLink(kv_bytes_per_token=1))
    )
    hosted.set_rule(rule)
    assert hosted.offloads
