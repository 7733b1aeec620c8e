"""Names that distributions released together with mha-core import; their version must be this package's.

Plugins of other people import ``mha_core.plugin``, whose contract has a version of its own. No other
distribution of this repository imports a name of core that is neither here, nor there, nor public.
"""

from .algebra import attention as attention_algebra
from .algebra.arrays import Array, Namespace, compute_dtype, device_name, device_of, dtype_name, integers, split_axis
from .algebra.biases import Bias
from .algebra.dropout import kept_elements
from .algebra.expressions import Mask
from .algebra.masks import runs
from .dispatch import contract, known
from .dispatch.backend import LoadedBackend, load
from .dispatch.context import ALGEBRA, demanding
from .dispatch.contract import FEATURES, LAYER_VJPS, STATE_FEATURES, VJPS
from .dispatch.default import backend_without_arrays
from .dispatch.errors import did_you_mean
from .dispatch.kernels import imported, opt_in_of
from .dispatch.registry import registry
from .dispatch.selection import backend_of, check_floating, check_name, find_backend
from .distributed.engine import Engine, engine_of
from .layers.atomic import atomic_file, lock, remove_left_over
from .layers.base import Layer
from .layers.norm import Norm
from .ops import check
from .ops.attend_vjp import attention_gradients
from .ops.functional import ACTIVATIONS, activate
from .ops.tree import holds
from .ops.updates import adamw
from .ops.vjp import traced
