"""Scores and observed lengths -> metrics, baselines, calibration and the report.

Start with `ranking_metrics.py`.
"""
