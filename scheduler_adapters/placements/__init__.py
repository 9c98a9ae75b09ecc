"""One file per placement: views of the instances as input, the number of one as output.

Start with `round_robin.py`.
"""
