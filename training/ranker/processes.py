"""Rank and number of the training processes, from the environment that `torchrun` sets."""

import os


def rank() -> int:
    """Return this process's number, from 0; only process 0 writes files."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Return the number of processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size())))
