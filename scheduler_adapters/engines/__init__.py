"""Real engines that run a policy: the driver interface, clocks and live metrics, a folder each.

A policy and requests come in, a timeline and events for observers go out. Start with `driver.py`,
then `vllm_v1/rank_scheduler.py` or `transformers_batching/rank_scheduler.py`.
"""
