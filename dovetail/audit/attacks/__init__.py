"""Attacks on what was kept of a run, as an honest but curious receiver makes them.

A file an attack: its paper, what the attacker is given, and the same attack without messages.
"""
