"""Benchmark of attention over ranks: processor time, bytes and waiting of each rank, and a model of many ranks."""
