"""Evidence, not product: `python -m benchmarks NAME`."""
