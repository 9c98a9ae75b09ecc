"""The scoring service: a trained length ranker behind gRPC, and the clients that ask it.

Start with `errors.py` and `bundle.py`, which the whole project shares, and `proto/scoring.proto`.

Asking: `client.py` raises what goes wrong, `async_client.py` is the same for asyncio, and
`fail_open.py` gives a score or None within a budget, for a scheduler's hot path.

Answering, from the inside out: `tokenizing.py` and `scorer.py` turn a prompt into a score,
`model.py` holds both; `costs.py` times the model and `batching.py` decides who runs when, and with
whom; `cache.py` remembers; `service.py` puts them together; `rpc.py` and `oip.py` translate
messages; `server.py` binds, serves and drains. Beside them `reload.py`, `registry.py`, `golden.py`
(new versions), `reports.py` (what became of the predictions), `metrics.py`, `security.py` and
`supervisor.py`. `bench/` compares all this with the bare model and with other services.
"""
