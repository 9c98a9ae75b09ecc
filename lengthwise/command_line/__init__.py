"""Command lines: from frozen dataclasses and arguments to one exit code.

Start with `program.py`, then `options.py`.
"""
