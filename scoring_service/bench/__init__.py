"""Cost of the service beside the bare model and beside other services, on this machine.

`run.py` runs everything and names the targets; `peers.py` starts the servers; `load.py` makes the
requests; `measures.py` holds one function per figure. Peers take turns in short slices, so that a
busy neighbour disturbs all of them alike, and are compared by the CPU time of their processes.
"""
