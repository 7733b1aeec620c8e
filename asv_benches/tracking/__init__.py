"""Performance over time: ``python -m tracking``."""
