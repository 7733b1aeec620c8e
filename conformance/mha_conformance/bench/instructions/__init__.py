"""Instructions of a call, counted by callgrind: figures that neither a busy machine nor another processor changes.

valgrind runs a program on a processor of its own making: the same on every machine that has AVX2.
"""
