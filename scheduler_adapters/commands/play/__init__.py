"""A trained ranker -> a served example until Ctrl-C; `command.py` is all of it."""
