"""A placement without overrides: requests stay, and roles too."""

from scheduler_adapters.placement import PLACEMENTS, Placement, load_placement
from scheduler_adapters.views import InstanceView, RequestView

VIEW = InstanceView(instance_id=3, now_s=0.0, used_blocks=5, total_blocks=20, block_tokens=16)
REQUEST = RequestView("a", 0, 0.0, 10)


class First(Placement):
    name = "first"

    def place(self, request, instances):
        return instances[0].instance_id


def test_a_placement_is_its_choice_at_arrival():
    placement = First()
    assert placement.place(REQUEST, [VIEW]) == 3
    assert placement.at_phase_change(REQUEST, 8, [VIEW]) == 8
    assert placement.tick(1.0, [VIEW]) == ()


def test_placements_are_made_by_name_or_by_import_path():
    for name in PLACEMENTS:
        assert load_placement(name).name == name
    assert load_placement("random", seed=3).name == "random"
    assert load_placement("scheduler_adapters.placements.baselines:LeastKv").name == "least-kv"
