"""Reports: timelines and tables in; CSV, SVG and HTML pages out.

Start with `latency_tables.py`, then `figures.py`; `lengthwise.report_page` writes the page.
"""
