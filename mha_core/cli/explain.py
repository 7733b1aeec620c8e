"""``mha explain``: show which kernel an operation would use for arrays of given shapes."""

from __future__ import annotations

import ast
import inspect
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.text import Text

from ..algebra import biases, masks
from ..algebra.arrays import integers
from ..algebra.grid import Term
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import ALGEBRA
from ..dispatch.default import backend_without_arrays
from ..dispatch.errors import did_you_mean
from ..layers.encoder import EncoderLayer
from ..ops import check
from ..ops.explain import OPERATIONS, Explanation, explain
from .command import BackendName, command, failing_clearly
from .tables import SafeConsole, table

_COLUMNS = ("operation", "runs", "arrays", "features", "not chosen")

LAYER = "encoder_layer"
_SHAPE = re.compile(r"\d+(x\d+)*")
_NUMBERS = {"scale", "softcap", "query_offset", "eps", "num_heads", "num_kv_heads", "interleaved", "norm_first", "d_ff"}
_BOOLEANS = {"true": True, "false": False}
_WORDS = {"approximate", "activation"}
_TERMS: Mapping[str, Callable[..., Any]] = {
    "causal": masks.causal,
    "window": masks.window,
    "chunks": masks.chunks,
    "prefix": masks.prefix,
    "key_lengths": masks.key_lengths,
    "packed": masks.packed,
    "alibi": biases.alibi,
}
_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Invert: operator.invert,
    ast.USub: operator.neg,
}


class BadArgument(ValueError):
    """An argument of the command cannot be used; it is blamed by its own name."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument


def run(
    op: str,
    pairs: Sequence[str],
    *,
    backend: str | None,
    dtype: str | None,
    device: str | None,
    gradients: bool = False,
) -> Explanation:
    """Return what ``op`` would run on, for arguments written as NAME=VALUE. Raises ValueError if they cannot be read."""
    if op != LAYER and op not in OPERATIONS:
        known = [*OPERATIONS, LAYER]
        raise BadArgument("OP", f"no operation is named {op!r}; expected one of {', '.join(known)}{did_you_mean(op, known)}")
    loaded = backend_without_arrays(backend)
    try:
        wanted = check.floating(loaded, dtype)
    except TypeError as error:
        raise BadArgument("--dtype", str(error)) from error
    try:
        loaded.check_device(device)
    except ValueError as error:
        raise BadArgument("--device", str(error)) from error
    written: dict[str, str] = {}
    for name, text in map(_split, pairs):
        if name in written:
            raise ValueError(f"{name} is given twice")
        written[name] = text
    values = {name: _value(loaded, name, text, wanted, device) for name, text in written.items()}
    if op == LAYER:
        return explain(*_layer(loaded, values, wanted, device), gradients=gradients, **values)
    parameters = inspect.signature(OPERATIONS[op]).parameters
    if "query" in values:
        alike = {"key": values["query"], "value": values.get("key", values["query"])}
        values = {name: x for name, x in alike.items() if name in parameters} | values
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD or name in values:
            continue
        if "None" not in str(parameter.annotation):
            wanted = f"{name}=8" if name in _NUMBERS else f"{name}=8x8x512x64"
            raise ValueError(f"{op} needs {name}, such as {wanted}")
        values[name] = None
    return explain(op, gradients=gradients, **values)


def record(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation, with those of the smaller operations in it, for JSON."""
    return {
        "operation": explanation.op,
        "backend": explanation.backend,
        "dtype": explanation.dtype,
        "device": explanation.device,
        "runs": explanation.kernel or ALGEBRA,
        "arrays": {name: list(shape) for name, shape in explanation.shapes},
        "features": sorted(explanation.features),
        "not chosen": dict(explanation.rejected),
        "calls": [record(each) for each in explanation.calls],
    }


def show(explanation: Explanation) -> None:
    """Print backend, dtype and device, and a row for each operation, above the smaller ones that it calls."""
    console = SafeConsole()
    first = next((each for each in explanation.walk() if each.dtype), explanation)
    console.print("on " + ", ".join(filter(None, (explanation.backend, first.dtype, first.device))), highlight=False)
    console.print(table(console, _COLUMNS, list(_rows(explanation, 0, 1))))


def _rows(each: Explanation, depth: int, count: int) -> Iterator[tuple[Text, ...]]:
    """Yield the rows of an operation and of those it calls; repeated calls share a row."""
    name = "  " * depth + each.op + (f" x{count}" if count > 1 else "")
    shown = each.shapes[:1] if each.calls else each.shapes  # the smaller operations show the weights they use
    arrays = "\n".join(f"{array} {'x'.join(map(str, shape))}" for array, shape in shown)
    refused = "\n".join(f"{kernel}: {reason}" for kernel, reason in each.rejected)
    yield tuple(map(Text, (name, each.kernel or ALGEBRA, arrays, ", ".join(sorted(each.features)), refused)))
    for call, same in groupby(each.calls):
        yield from _rows(call, depth + 1, len(list(same)))


def _split(pair: str) -> tuple[str, str]:
    name, equals, text = pair.partition("=")
    if not (name and equals and text):
        raise ValueError(f"{pair!r} is not of the form NAME=VALUE; expected for example query=8x8x512x64 or mask='causal()'")
    return name, text


def _value(backend: LoadedBackend, name: str, text: str, dtype: Any, device: Any) -> Any:
    if name in _WORDS:
        return text
    is_shape = _SHAPE.fullmatch(text) and name not in _NUMBERS
    if name == "mask" and is_shape:
        return backend.placeholder(_sizes(text), backend.xp.bool, device)
    if is_shape:
        return backend.placeholder(_sizes(text), dtype, device)
    if name in _NUMBERS:
        number = _BOOLEANS.get(text.lower())
        return _number(name, text) if number is None else number
    if name in ("mask", "bias"):
        return _evaluate(name, text, backend, device)
    raise ValueError(f"{name}={text} is not a shape; expected numbers joined by x, such as {name}=8x8x512x64")


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def _number(name: str, text: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    raise ValueError(f"{name}={text} is not a number; expected for example {name}=8, or true or false for a switch")


def _evaluate(name: str, text: str, backend: LoadedBackend, device: Any) -> Any:
    """Evaluate an expression of masks or biases: calls of _TERMS with numbers and lists, joined by & | ~."""

    def visit(node: Any) -> Any:
        match node:
            case ast.Expression(body):
                return visit(body)
            case ast.Constant(value):
                return value
            case ast.List(elts) | ast.Tuple(elts):
                return [visit(each) for each in elts]
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](visit(left), visit(right))
            case ast.UnaryOp(op, operand) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](visit(operand))
            case ast.Call(ast.Name("key_lengths"), [ast.List() as lengths], []):
                return masks.key_lengths(integers(backend.xp, visit(lengths), device))
            case ast.Call(ast.Name(term), arguments, []) if term in _TERMS:
                return _TERMS[term](*map(visit, arguments))
        raise ValueError(f"{name}={text} cannot be read; expected a shape, or {', '.join(_TERMS)} joined by & | ~")

    try:
        term = visit(ast.parse(text, mode="eval"))
    except SyntaxError as error:
        raise ValueError(f"{name}={text} cannot be read: {error.msg}") from error
    except TypeError as error:
        raise ValueError(f"{name}={text}: {error}") from error
    if not isinstance(term, Term):
        raise ValueError(f"{name}={text} is not a {name}; expected a shape, or {', '.join(_TERMS)} joined by & | ~")
    return term


def _layer(backend: LoadedBackend, values: dict[str, Any], dtype: Any, device: Any) -> tuple[EncoderLayer, Any]:
    """Return an encoder layer for x (..., d_model), and x; remove the layer's settings from ``values``."""
    if "x" not in values:
        raise ValueError(f"{LAYER} needs x=SHAPE, such as x=8x128x512")
    x = values.pop("x")
    settings = {name: values.pop(name) for name in ("num_heads", "d_ff", "activation", "norm_first") if name in values}
    layer = EncoderLayer.init(d_model=x.shape[-1], seed=0, backend=backend.name, **settings)
    return layer.map(lambda w: backend.placeholder(tuple(w.shape), dtype, device)), x


@command("Example:  mha explain attention query=1x8x2048x64 mask='causal() & window(255, 0)' --backend torch")
def explain_command(
    op: Annotated[str, typer.Argument(metavar="OP", help="An operation, such as attention, gelu or encoder_layer.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE...", help="An argument of OP: a shape such as 8x512, a mask such as 'causal()', or a number."
        ),
    ] = None,
    *,
    backend: BackendName = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="Dtype of the arrays, such as float16. Default: float32.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Device of the arrays; `mha backends` lists them.")] = None,
    gradients: Annotated[bool, typer.Option("--gradients", help="Explain the gradients too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which kernel a call would use, and why others are not chosen. Nothing is computed."""
    with failing_clearly():
        try:
            explanation = run(op, pairs or [], backend=backend, dtype=dtype, device=device, gradients=gradients)
        except BadArgument as error:
            raise typer.BadParameter(str(error), param_hint=error.argument) from error
        except (ValueError, TypeError) as error:
            raise typer.BadParameter(str(error), param_hint="NAME=VALUE") from error
        if as_json:
            typer.echo(json.dumps(record(explanation), indent=2))
        else:
            show(explanation)
