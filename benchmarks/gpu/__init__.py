"""One script for a GPU machine that is lent for minutes: `python -m benchmarks gpu`.

In: a file of requests with scores (`python -m benchmarks.gpu.burst prepare`). Out: a folder of
figures, kept as they come. Start with `run.py`.
"""
