"""Measurements: the calls that a kernel receives, the memory that a process takes, the modules that a new process imports."""
