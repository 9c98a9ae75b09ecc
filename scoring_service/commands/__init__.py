"""Commands on a ranker and on its service; dataclasses in, an exit code out.

Start with `serve.py`. `bench` and `loadtest` stand beside their measures, in `bench/`.
"""
