"""A prompt in, a score out: tokenizer, ONNX model, cost table. No gRPC.

Start with `model.py`.
"""
