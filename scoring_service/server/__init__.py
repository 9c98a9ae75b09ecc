"""The wire: gRPC methods, streams, security, metrics, processes. Decisions are in `service/`.

Start with `server.py`, then `rpc.py`.
"""
