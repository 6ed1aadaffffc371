"""Audit: what each party could learn from a run's messages, beyond its own columns.

A run is trained again, by its own settings and seeds, while what crosses between parties is kept
(``tape.py``). What was kept is attacked as an honest but curious receiver would, one file an attack
(``attacks/``); each figure is beside the same attack without the messages (``verdict.py``).
"""
