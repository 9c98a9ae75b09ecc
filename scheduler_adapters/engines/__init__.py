"""Engines that run a policy: each file translates between one engine and the rank interface.

Start with `ranking.py` (what every engine shares: asking the policy, keeping waiting requests in
rank order), then `vllm_v1.py`. `hints.py` names what a request may carry: its score, class and
TBT target. `vllm_offline.py` runs a list of requests through vLLM in this process.
"""
