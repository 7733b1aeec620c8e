"""The commands of mha-text: ``mha encode``, ``mha search``, ``mha attend`` and ``mha generate``."""
