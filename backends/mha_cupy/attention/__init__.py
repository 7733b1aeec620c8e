"""Attention on CUDA: the kernels ``flash`` and ``blocks``."""
