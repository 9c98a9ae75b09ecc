"""Calls without a wire: admission, cache, batching, reload, registry, reports.

Start with `scoring.py`.
"""
