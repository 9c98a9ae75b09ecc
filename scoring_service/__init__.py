"""A trained length ranker behind gRPC, and the clients that ask it for scores.

Start with `client/sync.py`, then `ranker/model.py`, `service/scoring.py` and `server/server.py`.
"""
