"""The wire: gRPC methods, health, security, metrics, set-up and end of the process.

Start with `server.py`, then `rpc.py`. Decisions are made in `service/`.
"""
