"""Engines that run a policy: each file translates between one engine and the rank interface.

Start with `ranking.py` (what every engine shares: asking the policy, keeping waiting requests in
rank order). A policy that also cares which running requests are served is carried out by
`planner.py`, with `residents.py` (whom it follows), `eviction.py` (who makes room) and
`step_plan.py` (what comes out); no engine is named there. Then `vllm_v1.py` and
`transformers_batching.py`. `hints.py` names what a request may carry.

`vllm_offline.py` runs a list of requests through vLLM in this process. Clients that know nothing of
scores get them from `vllm_middleware.py` in front of vLLM's OpenAI server, which `vllm_serve.py`
starts; `vllm_scores.py` is the same for the offline `LLM`.

What users see and the scheduler decides goes to vLLM's /metrics, and to routers, by
`token_clock.py`, `engine_metrics.py` and `vllm_measured.py`; `vllm_telemetry.py` adds what vLLM
itself reports of finished requests.

`vllm_validate.py` holds the simulator to the engine: `vllm_recording.py` writes down what it did,
in the seconds of `engine_clock.py`; `step_fit.py` learns its step times, `repeated_runs.py`
compares with the mean of several runs, `decision_replay.py` asks the policy again. `vllm_bench.py`
measures what our scheduler costs.
"""
