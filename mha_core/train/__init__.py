"""Training: optimisers, and schedules of their learning rates."""
