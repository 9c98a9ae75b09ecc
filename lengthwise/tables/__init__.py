"""Files of requests and responses: a table or a log comes in, a data frame goes out.

Start with `reading.py`, then `formats.py`. Needs pandas, and pyarrow for .zst files.
"""
