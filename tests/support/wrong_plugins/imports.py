"""A plugin that imports its array library when it is imported itself."""

import numpy  # noqa: F401

from . import mha_backends as mha_backends
