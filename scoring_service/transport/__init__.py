"""Calls and scrapes, each bounded in number, time and memory. Independent of the service.

Start with `direct.py`, then `limits.py`.
"""
