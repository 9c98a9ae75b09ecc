"""Benchmarks: the simulator, our scheduler inside vLLM, a burst through transformers."""
