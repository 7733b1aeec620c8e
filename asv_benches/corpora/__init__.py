"""Measurements of ``mha encode`` on Dask, and a model of clusters that are larger than this machine."""
