"""Decision about learned scheduling: a log of requests comes in, a verdict with a report goes out.

Start with `command.py`, then `evidence.py`, `replay.py`, `verdict.py`.
"""
