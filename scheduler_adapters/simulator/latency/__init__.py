"""Step times: latency models and the presets that name them.

Start with `models.py`, then `presets.py`.
"""
