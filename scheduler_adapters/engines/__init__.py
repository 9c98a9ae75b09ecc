"""Real engines under a policy: scores, clocks and live metrics, and a folder per engine.

A policy and requests are the input; a timeline and events for observers are the output. Start with
`vllm_v1/rank_scheduler.py` or `transformers_batching/rank_scheduler.py`.
"""
