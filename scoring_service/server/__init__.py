"""The wire: gRPC methods, health, security, metrics, processes.

Start with `server.py`, then `rpc.py`. Decisions are made in `service/`.
"""
