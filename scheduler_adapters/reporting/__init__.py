"""Tables, figures, HTML pages and MLflow runs of the commands.

Start with `tables.py`, then `figures.py`.
"""
