"""The base of all layers: a tree of arrays that can be listed, mapped, moved, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, ClassVar, Self

from ..algebra.arrays import Array, dtype_name, is_array
from ..algebra.int8 import Int8Weight, Weight, arrays_of
from ..autodiff.recorded import Recorded
from ..dispatch.backend import load
from ..dispatch.selection import backend_of, check_name
from ..ops import check
from ..ops.int8 import quantize_weight
from ..ops.tree import arrays_in, map_arrays
from ..ops.vjp import Gradients, as_node, traced
from . import files
from .construction import Constructed, with_hints
from .from_torch import read
from .outline import outline


@dataclass(frozen=True, eq=False)
class Layer(Constructed):
    """A frozen dataclass of arrays, other layers, tuples of layers, and plain settings.

    Its ``repr`` is an outline: names, shapes and the number of parameters, but no values.
    """

    fixed: ClassVar[tuple[str, ...]] = ()
    """The names of fields whose arrays are tables, not weights; they have no gradients, and no optimiser changes them."""
    linear_maps: ClassVar[tuple[str, ...]] = ()
    """The names of fields that are weights of linear maps, which ``quantized`` rounds to int8."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "vjp" in vars(cls) and "__call__" in vars(cls):
            cls.__call__ = _with_custom_vjp(vars(cls)["__call__"])  # type: ignore[method-assign]
        with_hints(cls)
        if "__repr__" not in vars(cls):  # before @dataclass makes one, which would show every value
            cls.__repr__ = Layer.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return outline(self, self.arrays())

    def arrays(self) -> dict[str, Array]:
        """Return every array by its dotted name, such as ``layers.0.attention.w_q``, or ``w_q.values`` and ``w_q.scale``.

        >>> import mha_core as mha
        >>> list(mha.LayerNorm.init(d_model=4).arrays())
        ['weight', 'bias']
        """
        return dict(self._arrays)

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        return dict(arrays_of(self._operands))

    @cached_property
    def _operands(self) -> dict[str, Weight]:
        """Every array and int8 weight by its dotted name."""
        return dict(_walk(self))

    @cached_property
    def features(self) -> frozenset[str]:
        """The features that a kernel of the whole layer must declare, by dotted name.

        ``name=Class`` for each layer inside, ``name=value`` for each setting that is a string, and the name alone for each
        setting that is True and each optional field that is given; ``int8`` if a weight is. Numbers are in ``settings``.

        >>> import mha_core as mha
        >>> sorted(mha.FeedForward.init(d_model=4, d_ff=8, seed=0).features)
        ['activation=relu']
        """
        return frozenset(_features(self._values))

    @cached_property
    def settings(self) -> dict[str, int | float]:
        """Every setting that is a number, by dotted name."""
        return {name: value for name, value, _ in self._values if _is_number(value)}

    @cached_property
    def _values(self) -> list[tuple[str, Any, bool]]:
        """The dotted name of each field, its value, and whether it is optional."""
        values = []
        for field in fields(self):
            value = getattr(self, field.name)
            values.append((field.name, value, field.default is None))
            if isinstance(value, Layer):
                values += [(f"{field.name}.{name}", *details) for name, *details in value._values]
        return values

    def _check(self) -> None:
        """Raise TypeError or ValueError, naming the setting, if one of this layer's own cannot be used; called by ``load``."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return what the layer computes."""
        raise NotImplementedError(f"{type(self).__name__} defines no __call__")

    def vjp(
        self, *arguments: Any, wrt: Callable[[str], bool] | None = None, **options: Any
    ) -> tuple[Any, Callable[[Any], Gradients]]:
        """Return the result of a call, and its pullback; see ``mha_core.vjp``.

        A class may define its own, for a faster or a custom gradient: it is then used wherever the layer is part of another.
        """
        return traced(self, arguments, options, wrt)

    def map(self, function: Callable[[Array], Array]) -> Self:
        """Return the same layer with ``function`` applied to every array."""
        return map_arrays(self, function)

    def quantized(self) -> Self:
        """Return the same layer for inference, with int8 weights in its linear maps: ``quantize_weight``. The rest stays.

        >>> import mha_core as mha
        >>> mha.FeedForward.init(d_model=4, d_ff=8, seed=0).quantized()
        FeedForward, numpy float32, 88 parameters
          w_1 (4, 8) int8
          b_1 (8,)
          w_2 (8, 4) int8
          b_2 (4,)
        """
        old = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        new = {name: _quantized(value, name in self.linear_maps) for name, value in old.items()}
        return replace(self, **{name: value for name, value in new.items() if value is not old[name]})

    def to(self, backend: str, *, device: Any = None, dtype: Any = None) -> Self:
        """Return the same layer with its arrays in another library, on another device, or of another dtype.

        ``dtype`` is a dtype of the target library, or its name; integers keep theirs. Raises UnknownBackend,
        BackendUnavailable; TypeError for a dtype that is not floating; ValueError for a device that the library lacks.
        """
        target = load(check_name(backend))
        target.check_device(device)
        wanted = check.floating(target, dtype, default=None)

        def move(x: Array) -> Array:
            source = backend_of({"array": x})
            is_floating = source.is_floating(x.dtype)
            if source is target:
                y = x if device is None else target.xp.asarray(x, device=device)
                return y if wanted is None or not is_floating else target.xp.astype(y, wanted, copy=False)
            # arrays travel through NumPy, which lacks bfloat16; float32 holds it exactly
            name = dtype_name(x.dtype)
            if not is_floating:
                return target.xp.astype(target.from_numpy(source.to_numpy(x), device), getattr(target.xp, name), copy=False)
            same = wanted if wanted is not None else check.floating(target, name)
            y = source.xp.astype(x, source.xp.float32) if name == "bfloat16" else x
            return target.xp.astype(target.from_numpy(source.to_numpy(y), device), same, copy=False)

        return self.map(move)

    @classmethod
    def from_torch(cls, source: Any, **settings: Any) -> Self:
        """Return the layer of a torch module, or of its state dict with ``num_heads``, ``activation`` and ``norm_first``.

        Modules: nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.TransformerDecoderLayer,
        nn.TransformerDecoder. The state dict of nn.MultiheadAttention needs only ``num_heads``; those of the others may come
        with ``eps``. Inputs are batch first here, whatever the module's ``batch_first``, and its dropout is left out.

        Raises ValueError that lists missing or unknown keys, and for modules without a counterpart here; TypeError for
        settings that are absent, or given although the module holds them.
        """
        return read(cls, source, settings)

    def save(self, path: str | Path) -> None:
        """Write the layer as a safetensors file; the metadata hold what ``load`` needs to build it again."""
        files.save(self, path)

    @classmethod
    def load(cls, path: str | Path, *, backend: str | None = None, device: Any = None) -> Self:
        """Return the layer that ``save`` wrote, in any backend.

        Raises FileNotFoundError; LayerFileError if the file is corrupt, holds another layer, or does not fit.
        """
        layer = files.load(path, {**_known(Layer), Int8Weight.__name__: Int8Weight}, backend=backend, device=device)
        if not isinstance(layer, cls):
            raise files.LayerFileError(f"{path} holds {type(layer).__name__}; expected {cls.__name__}")
        return layer


def _with_custom_vjp(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``__call__`` of a class with its own ``vjp``: on recorded arrays, that is used."""

    @wraps(call)
    def called(self: Any, *arguments: Any, **options: Any) -> Any:
        if any(isinstance(x, Recorded) for x in arrays_in((self, arguments, options))):
            return as_node(self, arguments, options)
        return call(self, *arguments, **options)

    return called


def _known(cls: type[Any]) -> dict[str, type[Any]]:
    """Return every layer class by name."""
    classes: dict[str, type[Any]] = {}
    for kind in cls.__subclasses__():
        classes |= {kind.__name__: kind, **_known(kind)}
    return classes


def _walk(value: Layer | tuple[Any, ...]) -> Iterator[tuple[str, Weight]]:
    """Yield the arrays and int8 weights in a layer or a tuple by their dotted names; a layer inside has its own already."""
    inside = enumerate(value) if isinstance(value, tuple) else ((f.name, getattr(value, f.name)) for f in fields(value))
    for name, each in inside:
        if isinstance(each, Layer | tuple):
            operands = each._operands.items() if isinstance(each, Layer) else _walk(each)
            yield from ((f"{name}.{key}", x) for key, x in operands)
        elif _is_operand(each):
            yield str(name), each


def _is_operand(value: Any) -> bool:
    return is_array(value) or isinstance(value, Int8Weight)


def _quantized(value: Any, is_linear_map: bool) -> Any:
    if isinstance(value, Layer):
        return value.quantized()
    if isinstance(value, tuple) and any(isinstance(each, Layer) for each in value):
        return tuple(_quantized(each, False) for each in value)
    return quantize_weight(value) if is_linear_map and is_array(value) else value


def _features(values: Iterable[tuple[str, Any, bool]]) -> Iterator[str]:
    for dotted, value, optional in values:
        if isinstance(value, Int8Weight):
            yield "int8"
        if isinstance(value, str):
            yield f"{dotted}={value}"
        elif value is True or (optional and (_is_operand(value) or _is_number(value))):
            yield dotted
        elif value is not None and not _is_operand(value) and not isinstance(value, int | float | tuple):
            kind = type(value)  # a class from elsewhere by its full name, so that no kernel declares it by chance
            known = isinstance(value, Layer) and kind.__module__.startswith(f"{__package__}.")
            yield f"{dotted}={kind.__name__ if known else f'{kind.__module__}.{kind.__qualname__}'}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
