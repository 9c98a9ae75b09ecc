"""One LLM instance in virtual time: `simulate(requests, policy, instance) -> Timeline`.

Start with `simulation.py`, then `instance.py` (what is simulated), `latency.py` (how long a step
takes), `host_link.py` (KV blocks that leave for the host), `reference.py` (the rules of a step,
plainly) and `engine.py` (the same rules, fast); `compiled.py` and `compiled_slai.py` have them
compiled, for the policies that this can be done for.

Step times: `presets.py` names all instances; `first_principles.py` computes them from `facts.py`;
`measured.py` reads them from kernels (`kernel_database.py`), layers (`layer_profile.py`,
`lockstep.py`) or whole phases (`phase_times.py`); `affine_fit.py` fits your own engine's steps.
`vllm_engine.py` is for comparisons with real vLLM.
"""
