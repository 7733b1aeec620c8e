"""Floor 3: the public operations. Each checks its arguments, chooses a kernel, and computes."""
