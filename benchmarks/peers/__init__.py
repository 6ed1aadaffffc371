"""Peers on the same data, networks and batches: ``python -m benchmarks.peers``."""
