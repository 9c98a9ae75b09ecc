import pytest

from scheduler_adapters.routers.ray.vllm_replicas.kv_transfer import kept_kv, parameters
from tests.scheduler_adapters.routers.test_legs import leg

KEPT = {"remote_engine_id": "e", "do_remote_prefill": True, "do_remote_decode": False}


@pytest.mark.parametrize(("context", "is_kept"), [(192, True), (193, False), (194, True)])
def test_kv_at_the_border_of_a_block_is_not_handed_over(context, is_kept):
    assert (kept_kv(KEPT, context, 32) is not None) is is_kept
    assert kept_kv(None, context, 32) is None  # the engine kept nothing


def test_a_leg_only_pulls_from_others_and_keeps_what_may_move():
    kv = kept_kv(KEPT, 194, 32)
    moved = leg("quantum", current="a", kv=kv)
    assert parameters(moved, "b") == KEPT
    assert parameters(moved, "a") is None
    both = leg("quantum", current="a", kv=kv, pause_after=9)
    assert parameters(both, "b") == KEPT | {"do_remote_decode": True}
    assert parameters(leg(pauses_at_think_end=True), "a")["do_remote_decode"]
    assert parameters(leg(), "a") is None
