"""A plugin that imports its array library as soon as it is imported itself, whether anyone uses it or not."""

import numpy  # noqa: F401

from . import mha_backends as mha_backends
