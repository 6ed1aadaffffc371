"""Sections of files about data, models and privacy: their keys, types and defaults, in pydantic
alone.

Every room may import it. It reads no library that computes, so that a mistake in a file is
reported at once; what is done by a setting is in the room that does it.
"""
