"""A model in service: exported, served over HTTP, explained, described, watched, calibrated.

Everything here starts from a model's folder. Nothing here trains one.
"""
