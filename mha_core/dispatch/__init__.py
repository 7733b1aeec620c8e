"""Floor 2: the plugin contract, and the choice of backend and kernel. No mathematics."""
