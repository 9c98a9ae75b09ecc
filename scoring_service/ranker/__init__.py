"""Scores of prompts by a loaded bundle and its ONNX model. No gRPC.

Start with `model.py`.
"""
