"""Reports: timelines and tables in; CSV, SVG and HTML pages out.

Start with `latency_tables.py` and `figures.py`; `lengthwise/report_page.py` writes the page.
"""
