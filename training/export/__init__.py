"""A trained ranker as ONNX files in FP32 and INT8, and its scores.

Start with `onnx_models.py`.
"""
