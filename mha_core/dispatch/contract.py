"""The records that plugins yield, and the features that describe a call to a kernel.

A backend is complete without kernels: the whole algebra runs on it. Kernels make single operations faster. A kernel never
receives a call that uses a feature it does not declare.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..algebra.arrays import dtype_name

API = 1
"""The version of this contract. A plugin written for another version is refused."""

STATE_FEATURES = frozenset({"gradient", "forward_gradient", "vmap", "traced", "unknown_sizes"})
"""Features that the state of a library may require of any kernel: reverse-mode or forward-mode gradients, mapping over a batch;
if traced, to consist of the library's own operations, which are being recorded, or whose arrays have no memory of their own; or
to compute with sizes that the library does not know, which are None in shapes."""

MASK_FEATURES = frozenset({"causal", "window", "key_lengths", "packed", "array_mask", "mask"})
"""The parts of a mask, in this order: an upper limit on key - query, a lower limit, a number of keys for each batch element,
sequences laid end to end, an array, and any other expression."""

BIAS_FEATURES = frozenset({"bias", "alibi", "relative_bias", "bias_term"})
"""The kinds of bias: an array, ``alibi``, ``relative_bias``, and any other."""

# Kernels released with core may declare these sets, minus what they lack. A plugin of another distribution should list features
# by name: a feature that core adds later joins the set, and the kernel would claim to support it.

ATTENTION_FEATURES = MASK_FEATURES | BIAS_FEATURES | {"lse", "softcap", "sink", "grouped_query", "value_dim", "broadcast"}
"""All features of attention. lse: the log-sum-exp is wanted. grouped_query: several query heads read one key head. value_dim:
values are not as wide as queries. broadcast: the batch axes of query, key and value differ."""

_INT8 = frozenset({"int8"})
"""A weight is an ``Int8Weight``, or keys and values are ``Int8Rows``."""

FUNCTION_FEATURES = frozenset({"mask_function", "score_function"})
"""A mask, or a bias, is or contains a function of batch, head, query and key. A kernel reads it through ``p.grid``."""

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
    *("attention.rotary=Rotary", "attention.rotary.interleaved", "norm_1=Identity", "norm_2=Identity"),
    *(f"{name}={norm}" for name in ("attention.norm_q", "attention.norm_k") for norm in ("LayerNorm", "RMSNorm")),
    *(f"{name}={norm}" for name in ("post_norm_1", "post_norm_2") for norm in ("LayerNorm", "RMSNorm")),
}
"""All features of an encoder layer that is made of this package's layers. ``name=Class`` names the class of an inner layer; a
user's own class appears with its full name, which no kernel declares by accident (``Layer.features``)."""

_DROPOUT = frozenset({"weight_dropout"})

VJPS = tuple(f"{name}_vjp" for name in ("linear", "layer_norm", "rms_norm", "gelu", "relu", "silu", "rotary", "embedding"))
"""The gradients of operations, which are operations too."""

_COMPOSITES: Mapping[str, frozenset[str]] = {
    "feed_forward": frozenset({"gate"}),
    "multi_head_attention": OPTION_FEATURES | {"context", "value_context", "norm_q", "norm_k", "rotary", "grouped_query"},
    "encoder_layer": LAYER_FEATURES,
}

LAYER_VJPS = tuple(f"{name}_vjp" for name in _COMPOSITES)
"""Operations made of smaller ones together with their gradients."""

FEATURES: Mapping[str, frozenset[str]] = {
    "attention": ATTENTION_FEATURES | FUNCTION_FEATURES | _DROPOUT | _INT8,
    "attention_weights": ATTENTION_FEATURES - {"lse", "value_dim"} | FUNCTION_FEATURES | _DROPOUT,
    **dict.fromkeys(("linear", "layer_norm", "rms_norm", "gelu", "relu", "silu", "rotary"), frozenset()),
    "linear_int8": frozenset(),
    **{name: features | _INT8 for name, features in _COMPOSITES.items()},
    **{f"{name}_vjp": features for name, features in _COMPOSITES.items()},
    "attention_vjp": ATTENTION_FEATURES - {"lse"} | FUNCTION_FEATURES | _DROPOUT | {"d_lse", "d_bias", "d_sink"},
    **dict.fromkeys((*VJPS, "adamw"), frozenset()),
}
"""The features that a call of each operation may use, besides ``STATE_FEATURES``."""

OPERATIONS = tuple(FEATURES)
"""The operations that kernels may compute."""


@dataclass(frozen=True)
class Backend:
    """An array library."""

    name: str
    """The name that users write in ``use_backend``."""
    api: int
    """The version of the contract that the plugin was written for, 1."""
    types: tuple[str | Callable[[Any], bool], ...]
    """``"module:qualname"`` of each array type; subclasses belong too.

    A predicate ``(array) -> bool`` may be among them, for arrays such as tracers, whose class is not enough to recognise them.
    It is called once for each class that no name matches, so it must not import the library.
    """
    namespace: Callable[[], Any]
    """Returns the array-API namespace.

    It is called once, on first use, and is the only place to import the library. If the library is installed but finds no
    device to run on, it raises ``NoDevice``.
    """
    devices: Callable[[], Sequence[Any]] | None = None
    """Returns the devices that can be named."""
    from_numpy: Callable[[Any, Any], Any] | None = None
    """Converts a NumPy array, for a device, to an array of the library; by default the namespace's ``asarray``."""
    to_numpy: Callable[[Any], Any] | None = None
    """Converts an array to NumPy, copying it from its device if needed; by default through DLPack."""
    is_floating: Callable[[Any], bool] | None = None
    """Returns whether a dtype is floating; by default the namespace's ``isdtype(dtype, "real floating")``."""
    parallel: Callable[[Callable[[Any], Any], Any], Any] | None = None
    """Applies a function to items on all cores and yields the results in order.

    The items may be a long generator: they are read as results are asked for, or somewhat ahead. By default items are computed
    one after another, for libraries that use all cores by themselves.
    """
    synchronize: Callable[[], None] | None = None
    """Waits until the device has finished its work."""
    features: Callable[[Sequence[Any]], frozenset[str]] | None = None
    """Returns the features that the arrays of a call, or the state of the library, require of a kernel, such as ``"gradient"``.

    None is passed for an array that was not given.
    """
    versions: Callable[[], Mapping[str, str]] | None = None
    """Returns the versions of the libraries by name."""
    install: str = ""
    """The command that installs what is missing."""
    elsewhere: Mapping[str, Mapping[str, str]] | None = None
    """Kernels for this backend that other distributions bring: for each operation, the command that installs each by name.

    ``explain`` names those that are not installed.
    """
    current_device: Callable[[], Any] | None = None
    """Returns the current device, for a library that computes there wherever the arrays are.

    Arrays on another device are refused, since their results would be on the current one.
    """
    set_num_threads: Callable[[int | None], None] | None = None
    """Sets how many threads the library and its kernels use on the host; None restores the number before the first call."""
    device_key: Callable[[Any], Hashable] | None = None
    """For a library whose devices have no hash: returns what stands for a device in the key of a plan."""
    refuses: Callable[[Any], str | None] | None = None
    """Returns why an array cannot be computed with, and what to write instead; None for any other array.

    It decides by the array's type, shape and dtype only, for example for a subclass whose ``*`` is a matrix product, or for an
    array whose shape is not known yet. The message begins with the name of the argument: ``"is a ...: write ..."``.
    """
    shields: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] | None = None
    """For features that name a state in which the library would compute in another dtype, such as torch's ``autocast``.

    Each takes a function, and returns one that computes the same outside of that state. No kernel is asked for such a feature.
    """
    value_and_grad: Callable[..., Any] | None = None
    """Differentiates with the library's own means; by default a tape of array-API calls does.

    It takes a function and a list of arrays. The function maps such a list to a scalar and other arrays, also a list. Returns
    the scalar, the other arrays without a record of gradients, and the gradients of the scalar, one for each array.
    """
    custom_vjp: Callable[..., tuple[Any, ...]] | None = None
    """Computes with a rule of ours for gradients, inside the library's own differentiation.

    It takes a list of arrays, a function of them that returns a tuple of arrays, and a pullback. This one takes the arrays, the
    results, and a gradient for each result; it returns one for each array, or None. The rule has no derivatives itself.
    """
    transforms: Mapping[str, Callable[..., Any]] | None = None
    """The library's transforms of functions, by the feature of ``STATE_FEATURES`` that they require of a kernel.

    Each takes a function, which maps arrays to a tuple of arrays, and a sequence of arrays. ``"gradient"`` also takes an array
    for each result, and returns the gradients of the sum of results times these. ``"forward_gradient"`` takes a tangent for
    each array, and returns those of the results. ``"vmap"`` returns the results for each element along the first axis of the
    arrays. Conformance judges kernels under them.
    """
    record_calls: Callable[[Sequence[Callable[..., Any]]], None] | None = None
    """Lets the library's compiler record each public call whole, if it follows Python code, but not the choice of a kernel.

    It is called once, after ``namespace``, with the functions that every public call passes through. They take a ``Step``, and
    its arguments and options. The compiler should follow a function of the plugin in their place.
    """
    version: Callable[[Any], Any] | None = None
    """Returns a value that differs after an array was written to, such as a hash of its bits.

    The tape compares it, so that gradients of arrays that have changed raise; without it, a write is not noticed.
    """
    advice: Mapping[str, str] | None = None
    """Lines that errors tell the user to write, where the usual ones do not work for this library.

    ``"cast"`` converts an array ``{x}`` to another ``{dtype}``, ``"convert"`` an array ``{x}`` of another library:
    ``{"cast": "{x}.astype(mylibrary.{dtype})"}``.
    """
    thread_bound: bool = False
    """True for a lazy library in which an array that is not computed yet can be used only in the thread that made it.

    Conformance then reads an array, which computes it, before it goes to another thread.
    """
    write: Callable[[Any, int, Any], Any] | None = None
    """Returns an array x (..., S, D) with other rows from a number on: ``write(x, start, rows)``. It may write into x.

    With it a cache of keys and values grows without copying what it holds; by default arrays are concatenated.
    """
    write_at: Callable[[Any, Any, Any], Any] | None = None
    """The same for a start that is an integer array (), as in compiled functions; by default rows are selected by position."""
    clear_caches: Callable[[], None] | None = None
    """Frees the programs that the library keeps for each shape that it has compiled; conformance calls it between problems."""


@dataclass(frozen=True)
class Call:
    """The properties of a call that are known without reading the elements of its arrays; hashable."""

    op: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: Any
    device: Any
    features: frozenset[str] = frozenset()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def dtype_name(self) -> str:
        """The name of the dtype in the array API standard, such as ``"float32"``, whatever the library calls it."""
        return dtype_name(self.dtype)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of an argument; None if it was not given."""
        return dict(self.shapes).get(name)

    def option(self, name: str) -> Any:
        """Return the value of an option, such as ``approximate`` of gelu; None if the call has no such option."""
        return dict(self.options).get(name)


@dataclass(frozen=True)
class Kernel:
    """A faster way to compute one operation on one backend."""

    backend: str
    """The backend whose arrays it takes, which may be another plugin's."""
    op: str
    """The operation, such as ``"attention"`` or ``"gelu"``."""
    name: str
    """The name that users write in ``use_kernel``."""
    api: int
    """The version of the contract that the plugin was written for, 1."""
    load: str
    """``"module:function"``, imported on first use.

    A kernel for ``"attention"`` receives an ``AttentionProblem`` and returns an ``AttentionState``. A kernel for any other
    operation receives the arguments of the public function of that name. One for ``"attention_vjp"`` receives a problem, a
    state, d_out, d_lse or None, and the names of the ``AttentionGradients`` that it returns; the state may be that of more keys
    than the problem has, as on a ring of processes. One for ``"linear_vjp"`` and its like receives the arrays of ``linear``,
    d_out, and ``wanted=``, the names of the arrays whose gradients are wanted; it returns a gradient for each array, None for
    the others. One for ``"encoder_layer_vjp"`` and its like receives the arguments of ``encoder_layer``, and ``wanted=``; it
    returns the result, and a pullback from its gradient to those that are wanted, by name. The pullback may be called several
    times.
    """
    priority: int = 0
    """Kernels are tried in descending order of priority."""
    handles: frozenset[str] = frozenset()
    """The features that it supports. It never receives a call that uses any other."""
    supports: str | Callable[[Call], str | None] | None = None
    """Returns None for a ``Call`` that the kernel can compute, otherwise the reason why it cannot.

    The answer is kept for equal calls, so it must depend on the ``Call`` alone.
    ``"module:function"`` is imported on first use, so the function may be in a module that imports the library.
    """
    opt_in: bool | str | Callable[[], bool | str] = False
    """True if only ``use_kernel`` chooses the kernel; a string is true and gives the reason.

    A function returns either. It is called when a kernel is chosen, so that what it reads costs nothing before.
    """
    prepare: str | None = None
    """``"module:function"`` of an attention kernel, for small calls.

    The function receives a problem, and returns a function ``(query, key, value, sink) -> AttentionState`` for all problems
    that differ from it only in the numbers and strides of these arrays; or None, and ``load`` computes. It must not keep
    any array of the problem.
    """
    source: Callable[[], str] | None = None
    """Returns the source code that the kernel compiles at run time. A certificate of conformance contains its SHA-256."""


@dataclass(frozen=True)
class Collectives:
    """An engine that sends arrays between the processes of a group, for ``mha_core.distributed``."""

    name: str
    """The name in messages, such as ``"torch.distributed"``."""
    api: int
    """The version of the contract that the plugin was written for, 1."""
    types: tuple[str, ...]
    """``"module:qualname"`` of what users pass as ``group=``, such as ``"mpi4py.MPI:Comm"``; subclasses belong too."""
    load: str
    """``"module:function"``, imported on first use. The function takes such a group, and returns an ``Engine``."""
    install: str = ""
    """The command that installs what is missing."""
