"""Ray Serve: its request router by our placements, and a gateway that serves requests in legs.

In: requests of OpenAI clients. Out: streamed tokens. Start with `replica.py`, then `gateway.py`.
"""
