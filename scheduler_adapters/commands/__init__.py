"""Commands of `python -m scheduler_adapters`: settings in; tables and files out.

One file per command; `experiment_settings.py` has the settings shared by several commands.
"""
