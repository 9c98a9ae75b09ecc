"""Real engines under a policy: the driver interface, clocks and live metrics, a folder per engine.

A policy and requests are the input; a timeline and events for observers are the output. Start with
`driver.py`, then `vllm_v1/rank_scheduler.py` or `transformers_batching/rank_scheduler.py`.
"""
