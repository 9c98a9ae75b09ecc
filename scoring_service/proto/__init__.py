"""The wire format: `scoring.proto` and the stubs generated from it by `generate.py`."""
