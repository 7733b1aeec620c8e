"""Benchmarks against other libraries: ``python -m peers``."""
