"""A trained length ranker behind gRPC, and the clients that ask it for scores.

Start with `errors.py` and `bundle.py`, which the whole project shares, and `proto/scoring.proto`;
then `client/sync.py`, `ranker/model.py`, `service/scoring.py` and `server/server.py`.
"""
