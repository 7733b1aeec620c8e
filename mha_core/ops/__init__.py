"""Floor 3: the public operations. Each checks its arguments, asks dispatch for a kernel, and computes."""
