"""Measurements from outside: which calls a kernel receives, how much memory a process takes, what a new process imports."""
