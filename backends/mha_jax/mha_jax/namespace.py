"""jax.numpy as an array-API namespace, with JAX's own gradient of a function, and its constants."""

from typing import Any

import jax
from jax import numpy as _numpy

globals().update({name: value for name, value in vars(_numpy).items() if not name.startswith("_")})
pullback, stop_gradient = jax.vjp, jax.lax.stop_gradient
__name__ = _numpy.__name__  # as messages call it


def __getattr__(name: str) -> Any:  # what jax.numpy computes when it is asked for
    return getattr(_numpy, name)
