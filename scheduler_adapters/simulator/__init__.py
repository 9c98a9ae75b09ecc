"""One LLM instance in virtual time: `simulate(requests, policy, instance) -> Timeline`.

Start with `simulation.py`, then `instance.py` (what is simulated), `latency.py` (how long a step
takes), `reference.py` (the rules of a step, plainly) and `engine.py` (the same rules, fast).
"""
