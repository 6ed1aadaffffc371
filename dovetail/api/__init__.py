"""The words of ``import dovetail as dt``: parties, methods, fit, runs; commands stand on them.

``dovetail/__init__.py`` names them, and imports each when it is first used.
"""
