"""Evidence, not product: `python -m benchmarks NAME`. Start with `__main__.py`."""
