"""A trained length ranker behind gRPC, and its clients.

Start with `proto/scoring.proto`; then `client/scoring_client.py`, `ranker/model.py`,
`service/scoring.py` and `server/server.py`.
"""
