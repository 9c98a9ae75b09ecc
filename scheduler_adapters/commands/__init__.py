"""One file per command of `python -m scheduler_adapters`.

`setup.py` holds the settings that several of them share.
"""
