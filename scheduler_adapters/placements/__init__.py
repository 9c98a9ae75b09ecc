"""One file per placement; each is a `Placement` of a few lines.

Start with `round_robin.py`. A view of the instances comes in, the number of one goes out.
"""
