"""Speed beside a floor or a peer: the simulator, vLLM's step, routing, the scoring service."""
