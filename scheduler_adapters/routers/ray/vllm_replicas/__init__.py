"""vLLM behind the gateway, by `ray.serve.llm`: its replicas, and KV between them.

In: legs. Out: their tokens, and reports of the engine's load. Start with `replica.py`.
"""
