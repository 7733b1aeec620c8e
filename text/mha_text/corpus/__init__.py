"""Corpora that are larger than memory: files of texts to files of vectors, in one process or on a Dask cluster."""
