"""The commands of `python -m scoring_service`, one file each; dataclasses in, an exit code out.

Start with `serve.py`.
"""
