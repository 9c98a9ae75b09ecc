"""Benchmarks: the simulator, our scheduler inside vLLM."""
