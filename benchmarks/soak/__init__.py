"""Servers under hostile clients, full disks and kills, for minutes; each a script."""
