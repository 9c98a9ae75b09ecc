"""Commands: settings of `python -m scheduler_adapters` come in; tables and files go out.

One file per command; `experiment_settings.py` holds what several of them share.
"""
