"""Views of instances for the tests of placements."""

from typing import Any

from scheduler_adapters.views import InstanceView


def view(
    instance_id: int = 0, role: str = "both", used_blocks: int = 0, **more: Any
) -> InstanceView:
    settings = {"total_blocks": 100, "now_s": 0.0, "block_tokens": 16}
    return InstanceView(
        instance_id=instance_id, role=role, used_blocks=used_blocks, **settings | more
    )
