"""Engines that run a policy: each file translates between one engine and the rank interface.

Start with `ranking.py` (what every engine shares: asking the policy, keeping waiting requests in
rank order), then `vllm_v1.py`. `hints.py` names what a request may carry: its score, class and
TBT target. `vllm_offline.py` runs a list of requests through vLLM in this process.

Clients that know nothing of scores get them from `vllm_middleware.py` in front of vLLM's OpenAI
server, which `vllm_serve.py` starts; `vllm_scores.py` is the same for the offline `LLM`.
`vllm_telemetry.py` and `vllm_measured.py` put latencies per user class, and what the scheduler
decides, on vLLM's /metrics.
"""
