"""Survival curves, the log-rank test and Cox regression of several parties' rows together."""
