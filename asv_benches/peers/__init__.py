"""How fast each backend is beside the best that others offer for the same work, on this machine: ``python -m peers``."""
