"""Ranks in tests: as threads of one process, and ranks that fail."""
