"""Response lengths measured at a live endpoint.

Start with `endpoint.py`.
"""
