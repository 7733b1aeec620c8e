"""Recorded arrays, and the namespace that computes with them: a record of what was computed, in array-API names.

A function whose derivative is known becomes a node of the tape. A function that is flat where it is defined, such as a
comparison, returns plain arrays. Any other function raises: no gradient is lost silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..algebra.arrays import Namespace
from . import composed, numpy_functions
from .rules import RULES
from .shapes import Rule, getitem
from .tape import Node, Pull, Tape, leaves_of

_COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}

FLAT = frozenset(
    {
        *(*_COMPARISONS.values(), "isnan", "isinf", "isfinite", "signbit", "sign"),
        *("floor", "ceil", "round", "trunc", "floor_divide", "logical_not", "logical_and", "logical_or", "logical_xor", "any"),
        *("all", "argmax", "argmin", "argsort", "nonzero", "count_nonzero", "zeros_like", "ones_like", "empty_like"),
        *("isdtype", "result_type", "can_cast", "finfo", "iinfo", "shape", "ndim", "size"),
    }
)
"""Functions with derivative 0 wherever they have one, and functions of types."""

_OTHER_NAMES = {f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")}
_OTHER_NAMES |= {"absolute": "abs", "true_divide": "divide", "power": "pow", "amax": "max", "amin": "min"}
_OTHER_NAMES |= {"concatenate": "concat", "cumsum": "cumulative_sum", "around": "round", "invert": "logical_not"}
"""The array-API names of functions that NumPy and CuPy call otherwise."""


class Recorded:
    """An array whose gradient is recorded: what was computed, and the node that says from what.

    It answers the operators, indexing and ``__array_namespace__`` of an array. Each library has a subclass of its own.
    """

    __slots__ = ("node", "value")
    space: RecordedNamespace
    """The namespace of the library's recorded arrays."""
    backend: Any = None
    """Set and read by the choice of a backend."""

    def __init__(self, value: Any, node: Node) -> None:
        self.value, self.node = value, node

    shape = property(lambda self: tuple(self.value.shape))
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    dtype = property(lambda self: self.value.dtype)
    device = property(lambda self: self.value.device)
    mT = property(lambda self: self.space.matrix_transpose(self))  # noqa: N815  (the standard's name)
    T = property(lambda self: self.space.permute_dims(self, tuple(range(self.ndim))[::-1]))

    def __array_namespace__(self, *, api_version: str | None = None) -> RecordedNamespace:
        return self.space

    def __repr__(self) -> str:
        return f"Recorded({self.value!r})"

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Any:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        return self.space.apply("indexing", getitem, (self, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("an array whose gradient is recorded cannot be written to: write xp.where(condition, new, x)")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"an array whose gradient is recorded has no attribute {name!r}: use a function of x.__array_namespace__(), "
            f"such as xp.sum(x), or an operation of mha_core"
        )

    def _number(self, *_: Any) -> Any:
        raise TypeError(
            "the number in an array whose gradient is recorded was asked for, which would lose the gradient: "
            "return it beside the loss with has_aux=True, or choose elements by xp.where"
        )

    __float__ = __int__ = __bool__ = __index__ = __complex__ = __array__ = __dlpack__ = _number

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "an array whose gradient is recorded was copied or pickled, which would lose the gradient: use the array itself, "
            "which nothing writes to"
        )

    __hash__ = None  # type: ignore[assignment]

    # NumPy's own functions

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            what = f"{ufunc.__name__}.{method}" if method != "__call__" else f"{ufunc.__name__} with {', '.join(options)}="
            raise TypeError(f"{what} has no rule for gradients, and an array cannot be written to while they are recorded")
        return getattr(self.space, ufunc.__name__)(*inputs)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return numpy_functions.call(self.space, function, arguments, options)


def _operator(name: str, reflected: bool = False) -> Callable[..., Any]:
    def method(self: Recorded, *operands: Any) -> Any:
        return getattr(self.space, name)(*operands, self) if reflected else getattr(self.space, name)(self, *operands)

    return method


def _in_place(self: Recorded, other: Any) -> Any:
    raise TypeError("an array whose gradient is recorded cannot be changed in place: write x = x + y in place of x += y")


_BINARY = {"sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide"}
_BINARY |= {name: name for name in ("add", "pow", "matmul")}
_UNARY = {"neg": "negative", "pos": "positive", "abs": "abs"}
for _symbol, _name in (_BINARY | _UNARY | _COMPARISONS).items():
    setattr(Recorded, f"__{_symbol}__", _operator(_name))
for _symbol, _name in _BINARY.items():
    setattr(Recorded, f"__r{_symbol}__", _operator(_name, reflected=True))
    setattr(Recorded, f"__i{_symbol}__", _in_place)


class RecordedNamespace:
    """The array-API namespace of a library's recorded arrays; what no recorded array enters is the library's own."""

    def __init__(self, xp: Namespace, version: Callable[[Any], Any] | None = None) -> None:
        """``version``: as in ``Tape``."""
        self.xp, self._version = xp, version
        self.__name__ = xp.__name__
        self.kind: type[Recorded] = type("Recorded", (Recorded,), {"__slots__": (), "space": self})

    def __getattr__(self, name: str) -> Any:
        name = name if hasattr(self.xp, name) and name not in _OTHER_NAMES else _OTHER_NAMES.get(name, name)
        member = self._recording(name)
        setattr(self, name, member)  # the next lookup is as fast as a module's
        return member

    def _recording(self, name: str) -> Any:
        """Return what the namespace has by this name: a function is replaced by one that also takes recorded arrays."""
        plain = getattr(self.xp, name, None)
        if name in RULES:
            rule = RULES[name]
            return lambda *arguments, **options: self.apply(name, rule, arguments, options)
        made = getattr(composed, name, None)
        if made is not None and not name.startswith("_"):
            return lambda *arguments, **options: self._composed(made, plain, arguments, options)
        if plain is None:
            raise AttributeError(f"{self.__name__} has no {name}, or gradients have no rule for it")
        if not callable(plain) or isinstance(plain, type) or self._is_dtype(plain):
            return plain
        return lambda *arguments, **options: self._flat(name, plain, arguments, options)

    def _is_dtype(self, x: Any) -> bool:
        try:
            return bool(self.xp.isdtype(x, ("bool", "numeric")))
        except (TypeError, AttributeError, ValueError):
            return False

    def _composed(self, made: Callable[..., Any], plain: Any, arguments: Any, options: Any) -> Any:
        if any(isinstance(x, Recorded) for x in leaves_of((*arguments, *options.values()))) or plain is None:
            return made(self, *arguments, **options)
        return plain(*arguments, **options)

    def _flat(self, name: str, plain: Callable[..., Any], arguments: Any, options: Any) -> Any:
        if name not in FLAT and any(isinstance(x, Recorded) for x in leaves_of((*arguments, *options.values()))):
            raise TypeError(f"{name} of an array whose gradient is recorded: there is no rule for its derivative")
        return plain(*map(plain_value, arguments), **{key: plain_value(value) for key, value in options.items()})

    def apply(self, name: str, rule: Rule, arguments: Sequence[Any], options: Any = {}) -> Any:  # noqa: B006  (never written)
        """Return the result of a function with a rule, as a node if a recorded array enters it."""
        inputs = arguments[0] if arguments and isinstance(arguments[0], list | tuple) else arguments
        hidden = [key for key, value in options.items() if isinstance(value, Recorded)]
        if hidden:
            raise TypeError(f"{name}: pass {', '.join(hidden)} by position, so that its gradient is recorded")
        result, pulls = rule(self.xp, *map(plain_value, arguments), **options)
        active = [(x, pulls[at]) for at, x in enumerate(inputs) if isinstance(x, Recorded)] if pulls is not None else []
        chosen = [(x.node, pull) for x, pull in active if pull is not None]
        if not chosen:
            return result
        parents, functions = zip(*chosen, strict=True)
        return self.record(result, parents, lambda d: [pull(d) for pull in functions], leaves_of(arguments))

    def tape(self) -> Tape:
        """Return a new tape."""
        return Tape(self._version)

    def leaf(self, tape: Tape, x: Any) -> Recorded:
        """Return an array as a leaf of a tape, whose gradient is then recorded."""
        tape.use((x,))
        return self.kind(x, Node(tape, like=x))

    def record(
        self, result: Any, parents: Sequence[Node], pull: Pull, used: Iterable[Any] = (), *, fresh: bool = False
    ) -> Recorded:
        """Return a result as a recorded array: ``pull`` maps its gradient to those of its parents.

        ``used``: the values that ``pull`` reads besides recorded ones. ``fresh``: as in ``Node``.
        """
        tape = parents[0].tape
        tape.use(x for x in used if not isinstance(x, Recorded))
        return self.kind(result, Node(tape, parents, pull, result, fresh))


def plain_value(x: Any) -> Any:
    """Return what a recorded array holds; other values, and lists and tuples of arrays, likewise without a record."""
    if isinstance(x, Recorded):
        return x.value
    if type(x) in (list, tuple):
        return type(x)(map(plain_value, x))
    return x
