"""How many processes train together: what `torchrun` tells each of them through the environment."""

from __future__ import annotations

import os


def rank() -> int:
    """This process among all, from 0; only 0 writes anything."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Processes on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size())))
