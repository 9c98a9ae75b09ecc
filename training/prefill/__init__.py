"""Measured prefill latencies -> the cost of a prompt (alpha, beta, peak rate).

Start with `cost.py`.
"""
