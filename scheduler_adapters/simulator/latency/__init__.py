"""Step times: latency models, from first principles, fits, tables or measured kernels.

Start with `models.py`.
"""
