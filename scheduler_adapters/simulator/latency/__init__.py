"""Step times: latency models, from first principles, fits or tables.

Start with `models.py`.
"""
