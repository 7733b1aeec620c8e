"""The records that a plugin yields, and the words in which a call is described to a kernel.

A backend alone is complete: the whole algebra runs on it. Kernels make single operations faster, and fail closed: a kernel that
does not declare a feature is never given a call that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

API = 1
"""The version of this contract. A plugin written for another version is refused."""

STATE_FEATURES = frozenset({"gradient", "forward_gradient", "vmap"})
"""What the state of a library may ask of any kernel: that gradients flow backwards or forwards, that a batch is mapped over."""

MASK_FEATURES = frozenset({"causal", "window", "key_lengths", "packed", "array_mask", "mask"})
"""What a mask consists of: an upper limit on key - query, a lower one, a number of keys for each batch element, sequences laid
end to end, an array, and any other expression."""

BIAS_FEATURES = frozenset({"bias", "alibi", "relative_bias", "bias_term"})
"""An array, ``alibi``, ``relative_bias``, and any other bias."""

# Kernels that are released with core may declare these sets, less what they lack. A plugin of another distribution lists words:
# a feature that core adds later joins the set, and the kernel would claim it.

ATTENTION_FEATURES = MASK_FEATURES | BIAS_FEATURES | {"lse", "softcap", "sink", "grouped_query", "value_dim", "broadcast"}
"""All features of attention. lse: the log-sum-exp is wanted. grouped_query: several query heads read one key head. value_dim:
values are not as wide as queries. broadcast: the batch axes of query, key and value differ."""

OPTION_FEATURES = frozenset({"mask", "bias", "scale", "softcap", "sink", "query_offset"})
"""The options of attention that were given to an operation made of smaller ones."""

STANDARD_LAYER_FEATURES = OPTION_FEATURES | {
    *("norm_first", "attention=MultiHeadAttention", "feed_forward=FeedForward", "norm_1=LayerNorm", "norm_2=LayerNorm"),
    *(f"attention.{name}" for name in ("b_q", "b_k", "b_v", "b_o", "num_kv_heads")),
    *(f"feed_forward.activation={name}" for name in ("relu", "gelu", "gelu_tanh", "silu")),
}
"""The features of an encoder layer as in Vaswani et al. 2017, also with pre-norm, grouped queries and other activations."""

LAYER_FEATURES = STANDARD_LAYER_FEATURES | {
    *("dropout", "norm_1=RMSNorm", "norm_2=RMSNorm", "feed_forward.w_g", "feed_forward.b_g"),
    *("attention.rotary=Rotary", "attention.rotary.interleaved"),
}
"""All features of an encoder layer that is made of this package's layers. ``name=Class`` names the class of a layer inside; a
class of a user's own is a feature of its own (``Layer.features``)."""

FEATURES: Mapping[str, frozenset[str]] = {
    "attention": ATTENTION_FEATURES,
    "attention_weights": ATTENTION_FEATURES - {"lse", "value_dim"},
    **dict.fromkeys(("linear", "layer_norm", "rms_norm", "gelu", "relu", "silu", "rotary"), frozenset()),
    "feed_forward": frozenset({"gate"}),
    "multi_head_attention": OPTION_FEATURES | {"context", "value_context", "rotary", "grouped_query"},
    "encoder_layer": LAYER_FEATURES,
}
"""The features that a call of each operation may use, besides ``STATE_FEATURES``."""

OPERATIONS = tuple(FEATURES)
"""The operations that kernels may compute."""


@dataclass(frozen=True)
class Backend:
    """An array library."""

    name: str
    """What users write in ``use_backend``."""
    api: int
    """The version of the contract that the plugin was written for, 1."""
    types: tuple[str | Callable[[Any], bool], ...]
    """``"module:qualname"`` of each array type; subclasses belong too.

    A predicate ``(array) -> bool`` may stand among them, for arrays such as tracers, whose class does not tell. It is called
    once for each class that no name fits, so it must not import the library.
    """
    namespace: Callable[[], Any]
    """Returns the array-API namespace.

    It is called once, on first need, and is the only place to import the library. Where the library is installed but finds no
    device to run on, it raises ``NoDevice``.
    """
    devices: Callable[[], Sequence[Any]] | None = None
    """Returns the devices that can be named."""
    from_numpy: Callable[[Any, Any], Any] | None = None
    """Converts a NumPy array, for a device, to an array of the library; by default the namespace's ``asarray``."""
    to_numpy: Callable[[Any], Any] | None = None
    """Converts an array to NumPy, and copies it from its device if it must; by default by DLPack."""
    is_floating: Callable[[Any], bool] | None = None
    """Whether a dtype is floating; by default the namespace's ``isdtype(dtype, "real floating")``."""
    parallel: Callable[[Callable[[Any], Any], Any], Any] | None = None
    """Applies a function to items on all cores and yields the results in order.

    By default items are computed one after another, for libraries that use all cores by themselves.
    """
    synchronize: Callable[[], None] | None = None
    """Waits for the device."""
    features: Callable[[Sequence[Any]], frozenset[str]] | None = None
    """Returns what the arrays of a call, or the state of the library, ask of a kernel, such as ``"gradient"``.

    None stands for an array that was not given.
    """
    versions: Callable[[], Mapping[str, str]] | None = None
    """Returns the versions of the libraries by name."""
    install: str = ""
    """The command that installs what is missing."""
    current_device: Callable[[], Any] | None = None
    """For a library that computes on its current device wherever the arrays are: returns that device.

    Arrays on another device are refused, since their results would be on the current one.
    """
    set_num_threads: Callable[[int | None], None] | None = None
    """Sets how many threads the library and its kernels use on the host; None restores the number before the first call."""
    device_key: Callable[[Any], Hashable] | None = None
    """For a library whose devices have no hash: returns what stands for a device in the key of a plan.

    Where the library has a current device, the result must depend on that one too.
    """


@dataclass(frozen=True)
class Call:
    """What is known of a call without looking at a number. It is hashable."""

    op: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: Any
    device: Any
    features: frozenset[str] = frozenset()
    options: tuple[tuple[str, Any], ...] = ()

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of an argument; None if it was not given."""
        return dict(self.shapes).get(name)

    def option(self, name: str) -> Any:
        """The value of an option, such as ``approximate`` of gelu."""
        return dict(self.options).get(name)


@dataclass(frozen=True)
class Kernel:
    """A faster way to compute one operation on one backend."""

    backend: str
    """Whose arrays it takes; the backend may be another plugin's."""
    op: str
    """The operation, such as ``"attention"`` or ``"gelu"``."""
    name: str
    """What users write in ``use_kernel``."""
    api: int
    """The version of the contract that the plugin was written for, 1."""
    load: str
    """``"module:function"``, imported on first use.

    A kernel for ``"attention"`` receives an ``AttentionProblem`` and returns an ``AttentionState``. A kernel for any other
    operation receives the arguments of the public function of that name.
    """
    priority: int = 0
    """Kernels are tried in descending order of priority."""
    handles: frozenset[str] = frozenset()
    """The features that it supports; a call that uses any other goes elsewhere."""
    supports: str | Callable[[Call], str | None] | None = None
    """Returns None for a ``Call`` that the kernel can compute, otherwise the reason why it cannot.

    ``"module:function"`` is imported when a call first asks; so the function may stand in a module that imports the library.
    """
    opt_in: bool | str = False
    """True, or the reason: the kernel is chosen only by ``use_kernel``."""
    prepare: str | None = None
    """``"module:function"`` of an attention kernel, for small calls.

    The function receives a problem, and returns a function ``(query, key, value, sink) -> AttentionState`` for all problems
    that differ from it only in the numbers and strides of these arrays; or None, and ``load`` computes. It keeps no array of
    the problem.
    """
    source: Callable[[], str] | None = None
    """Returns the text that the kernel compiles on need. A certificate of conformance names its SHA-256."""
