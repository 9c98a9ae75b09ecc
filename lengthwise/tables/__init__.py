"""Logs and tables of requests, read by a pipeline of one module per step.

Start with `reading.py`, which joins the steps. `files.py` finds files and their kinds, and
`rows.py` yields their rows. `requests.py` finds what a row states at the paths of its format.
`checks.py` is the list of reasons against a row, and `columns.py` collects the others. `gateways/`
holds what belongs to one gateway or server. `token_counts.py` and `times.py` settle counts and
units.
"""
