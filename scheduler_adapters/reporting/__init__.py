"""Reports: timelines and tables come in; CSV, SVG, HTML pages and MLflow runs go out.

Start with `page.py`, then `latency_tables.py` and `figures.py`.
"""
