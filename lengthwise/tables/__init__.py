"""Readers of requests and responses: bytes of a table or log to rows, rows to a data frame.

`reading.py` is the one path. `files.py` turns bytes into rows, `formats.py` and `vllm_log.py` rows
of a log into our columns. pandas is needed, and pyarrow for .zst files.
"""
