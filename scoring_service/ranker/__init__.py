"""A prompt in, a score out: a loaded bundle and its ONNX model. No gRPC.

Start with `model.py`.
"""
