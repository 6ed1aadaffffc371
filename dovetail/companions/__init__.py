"""Companions: parts that a person may do without; the core imports none of these folders."""
