"""The commands of mha-text: ``mha encode``, ``mha search`` and ``mha attend``."""
