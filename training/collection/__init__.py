"""Prompts and a live endpoint -> a table of response lengths with its card.

Start with `collecting.py`.
"""
