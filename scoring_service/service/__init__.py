"""What a call does: admission, cache, batches, reload, reports. No wire.

Start with `scoring.py`.
"""
