"""Logs and tables of requests: bytes to rows, rows to requests under our names.

Start with `reading.py`. `files.py` streams rows, `formats.py` and `vllm_log.py` are the formats,
`token_counts.py` and `times.py` settle counts and units, `log_reader.py` is the rule of a row.
"""
