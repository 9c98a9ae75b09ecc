"""The wire: gRPC methods, streams, security, metrics, processes. Decides nothing.

Start with `server.py`, then `rpc.py`.
"""
