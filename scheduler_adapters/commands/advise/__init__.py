"""Decision about learned scheduling: a log of requests comes in, a verdict with a report goes out.

Start with `command.py`, then `scored_log.py`, `replay.py`, `verdict.py`.
"""
