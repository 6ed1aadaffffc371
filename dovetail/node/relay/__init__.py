"""``dovetail relay``: carries letters between parties that reach it and not each other.

It keeps letters until they are taken (``store.py``) and lets in who has a certificate of its
authority (``application.py``). It cannot open a letter; whoever runs it sees names, times, sizes.
"""
