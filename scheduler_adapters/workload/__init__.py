"""Requests that come in: columns, arrival processes, traces, tables and scores.

Start with `requests.py`.
"""
