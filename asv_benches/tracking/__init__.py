"""Performance from commit to commit: ``python -m tracking``."""
