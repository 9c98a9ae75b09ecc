"""Cost of the service beside the bare model and beside other services, on this machine.

Start with `run.py`, then `measures.py`, one function per figure. Peers take turns in short slices,
so that a busy neighbour disturbs all of them alike. They are compared by CPU time.
"""
