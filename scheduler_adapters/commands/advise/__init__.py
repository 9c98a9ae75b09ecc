"""Decision for or against learned scheduling: a log of requests in, a verdict with a report out.

Start with `command.py`, then `scored_log.py`, `replay.py`, `verdict.py`, `page.py`.
"""
