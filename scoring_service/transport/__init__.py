"""Calls, streams and scrapes as such, each bounded in number, time and memory. Knows no service.

Start with `direct.py`, then `blocked_calls.py`.
"""
