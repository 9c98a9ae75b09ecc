"""Scores and observed lengths -> metrics, baselines, calibration, drift and figures.

Start with `ranking_metrics.py`.
"""
