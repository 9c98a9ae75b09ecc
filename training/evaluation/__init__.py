"""How good a ranking is: metrics, baselines, calibration, drift and figures.

Start with `metrics.py`.
"""
