"""What a plugin yields, and what a kernel is asked: plain frozen records.

A backend alone is complete: the whole algebra runs on it. Kernels make single operations faster, and fail closed: one
that does not declare a feature is never given a call that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

API = 1
"""The version of this contract. A plugin that names another is refused."""


OPERATIONS = (
    *("attention", "attention_weights", "linear", "layer_norm", "rms_norm", "gelu", "relu", "silu", "rotary"),
    *("feed_forward", "multi_head_attention", "encoder_layer"),
)
"""What kernels may compute. One for any other is never asked: of a version to come, or a slip of the pen."""


@dataclass(frozen=True)
class Backend:
    """An array library.

    Parameters
    ----------
    name : what users write in ``use_backend``
    api : the version of the contract that the plugin was written for, 1
    types : ``"module:qualname"`` of the array types
        A subclass belongs too. A predicate ``(array) -> bool`` may stand among them, for arrays whose class says nothing, such
        as tracers; it is asked once for each class that no name fits, so it must not import the library.
    namespace : function that returns the array-API namespace
        Called once, on first need, and the only place to import the library. Where the library is installed but has no device
        to run on, it raises ``NoDevice``.
    devices : function that returns the devices that can be named
    from_numpy : function of a NumPy array and a device
        The array in the backend's library; by default the namespace's ``asarray``.
    to_numpy : function of an array
        The reverse, copied from a device if it must; by default by DLPack.
    is_floating : function of a dtype
        By default the namespace's ``isdtype(dtype, "real floating")``.
    parallel : function of a function and its items
        Yields the results in order, computed on all cores; by default one after another, for libraries that use all cores by
        themselves.
    synchronize : function that waits for the device
    features : function of a call's arrays
        What they, or the state that the library is in, ask of a kernel beside the call's own features, such as ``"gradient"``
        where the library records one. None stands for an array that was not given.
    versions : function that returns the versions of the libraries by their names
    install : the command that installs what is missing
    current_device : function that returns a device
        For a library that computes on its current device, wherever the arrays are: which one that is. Arrays of another are
        refused, since what is computed of them would not stay with them.
    set_num_threads : function of n
        n threads for what the library and its kernels compute on the host, an int of at least 1, or None: as many as before
        the first call.
    """

    name: str
    api: int
    types: tuple[str | Callable[[Any], bool], ...]
    namespace: Callable[[], Any]
    devices: Callable[[], Sequence[Any]] | None = None
    from_numpy: Callable[[Any, Any], Any] | None = None
    to_numpy: Callable[[Any], Any] | None = None
    is_floating: Callable[[Any], bool] | None = None
    parallel: Callable[[Callable[[Any], Any], Any], Any] | None = None
    synchronize: Callable[[], None] | None = None
    features: Callable[[Sequence[Any]], frozenset[str]] | None = None
    versions: Callable[[], Mapping[str, str]] | None = None
    install: str = ""
    current_device: Callable[[], Any] | None = None
    set_num_threads: Callable[[int | None], None] | None = None


@dataclass(frozen=True)
class Call:
    """What is known of a call without looking at a number: hashable, so that decisions can be kept."""

    op: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: Any
    device: Any
    features: frozenset[str] = frozenset()
    options: tuple[tuple[str, Any], ...] = ()

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of an argument, None where it was not given."""
        return dict(self.shapes).get(name)

    def option(self, name: str) -> Any:
        """The value of an option, such as ``approximate`` of gelu."""
        return dict(self.options).get(name)


@dataclass(frozen=True)
class Kernel:
    """A faster way to compute one operation on one backend.

    Parameters
    ----------
    backend : whose arrays; it may be someone else's backend
    op : the operation, such as ``"attention"`` or ``"gelu"``
    name : what users write in ``use_kernel``
    api : as in ``Backend``
    load : ``"module:function"``, imported on first use
        ``"attention"`` receives an ``AttentionProblem`` and returns an ``AttentionState``, every other operation the arguments
        of the public function of its name.
    priority : higher is asked first
    handles : the features that it honours; a call with any other goes elsewhere
    supports : function of a ``Call``: None, or the reason against
        Or its name, ``"module:function"``, imported when a call first asks: for a module that imports the array library.
    opt_in : never chosen by itself, only by ``use_kernel``; True, or the reason
    prepare : ``"module:function"`` of a kernel of attention, for small calls
        It is given a first problem and returns a function ``(query, key, value, sink) -> AttentionState`` for every problem
        that differs from it in the numbers of these arrays alone, strides included; or None, and ``load`` computes. No array of
        the first problem may be kept.
    source : function that returns the text that the kernel compiles on need
        A certificate of conformance names its SHA-256, so that it speaks for no other.
    """

    backend: str
    op: str
    name: str
    api: int
    load: str
    priority: int = 0
    handles: frozenset[str] = frozenset()
    supports: str | Callable[[Call], str | None] | None = None
    opt_in: bool | str = False
    prepare: str | None = None
    source: Callable[[], str] | None = None
