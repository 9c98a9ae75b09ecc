"""Reports: timelines and tables in; CSV, SVG, HTML pages and MLflow runs out.

Start with `page.py`, then `latency_tables.py` and `figures.py`.
"""
