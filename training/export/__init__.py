"""A trained scorer -> ONNX files in FP32 and INT8, and the scores that they give.

Start with `onnx_models.py`.
"""
