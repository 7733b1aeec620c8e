"""Conformance and benchmarks on one GPU, compared with torch; ``make gpu-check`` runs them."""
