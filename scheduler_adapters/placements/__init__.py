"""Placements: views of the instances as input, the number of one as output.

Start with `baselines.py`.
"""
