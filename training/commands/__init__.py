"""Command lines -> the functions of the rooms below; one file per command of `python -m training`.

Start with `fit.py`; `options.py` holds the options that several commands have.
"""
