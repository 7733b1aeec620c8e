"""Benchmark problems with exact answers, and the code that times them.

The wheel includes this package for ``mha bench``. Its modules import each other relatively. They import ``mha_core``,
the code to be measured, by name and inside functions, so that asv can run these benchmarks on an older mha_core.
"""
