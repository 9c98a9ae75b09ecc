"""Scores and observed lengths -> metrics, baselines, calibration, drift and the report.

Start with `ranking_metrics.py`.
"""
