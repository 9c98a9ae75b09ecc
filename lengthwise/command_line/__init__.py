"""Command lines: frozen dataclasses and arguments come in, one exit code goes out.

Start with `program.py`, then `options.py`.
"""
