"""Prefill latencies and the cost model fitted to them."""
