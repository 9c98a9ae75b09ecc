"""Schedulers for LLM serving: policies that rank requests, and the engines that run them.

Start with `views.py`, then `policy.py`, then one policy (`policies/fcfs.py`); `simulator/` tries it
in virtual time and `engines/` in a real engine.
"""
