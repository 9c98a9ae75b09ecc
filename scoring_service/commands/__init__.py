"""Commands on a ranker and on its service; dataclasses in, an exit code out.

Start with `serve.py`.
"""
