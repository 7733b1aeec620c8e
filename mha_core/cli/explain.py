"""``mha explain``: show which kernel an operation would use for arrays of given shapes."""

from __future__ import annotations

import ast
import inspect
import json
import math
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
from ..dispatch import known
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import ALGEBRA
from ..dispatch.default import backend_without_arrays
from ..dispatch.errors import UnknownDevice, did_you_mean
from ..layers.encoder import EncoderLayer
from ..ops import check
from ..ops.explain import OPERATIONS, Explanation, explain
from ..ops.options import Options, hint_of
from .command import BackendName, command, failing_clearly
from .tables import SafeConsole, prose_console, table

_COLUMNS = ("operation", "runs", "arrays", "features", "not chosen")

LAYER = "encoder_layer"
_SHAPE = re.compile(r"\d+(x\d+)*")
_NUMBERS = {"scale", "softcap", "query_offset", "eps", "num_heads", "num_kv_heads", "interleaved", "norm_first", "d_ff"}
_AS_WIDE = {"w_k": "w_q", "w_v": "w_k"}
"""Weights with as many columns as another."""
_AFTER = {"w_o": "w_v", "w_2": "w_1"}
"""Weights with as many rows as another has columns."""
_SETTINGS = ("num_heads", "d_ff", "activation", "norm_first")
_LAYER_PARAMETERS = ("x", *_SETTINGS, *Options.__annotations__)
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
    loaded = backend_without_arrays(backend, device)
    try:
        wanted = check.floating(loaded, dtype)
    except TypeError as error:
        raise BadArgument("--dtype", str(error)) from error
    written: dict[str, str] = {}
    for name, text in map(_split, pairs):
        if name in written:
            raise ValueError(f"{name} is given twice")
        written[name] = text
    parameters = _LAYER_PARAMETERS if op == LAYER else tuple(inspect.signature(OPERATIONS[op]).parameters)
    for name in written:
        if name not in parameters:
            raise ValueError(f"{op} takes no {name}; expected {', '.join(parameters)}{_hint(name, parameters)}")
    values = {name: _value(loaded, name, text, wanted, device) for name, text in written.items()}
    if op == LAYER:
        return explain(*_layer(loaded, values, wanted, device), gradients=gradients, **values)
    if "query" in values:
        alike = {"key": values["query"], "value": values.get("key", values["query"])}
        values = {name: x for name, x in alike.items() if name in parameters} | values
    for name, parameter in inspect.signature(OPERATIONS[op]).parameters.items():
        if parameter.default is not parameter.empty or name in values:
            continue
        if "None" not in str(parameter.annotation):
            raise ValueError(f"{op} needs {name}, such as {name}={_example(name, values)}")
        values[name] = None
    return explain(op, gradients=gradients, **values)


def _hint(name: str, parameters: tuple[str, ...]) -> str:
    """Return the end of a message about a name that an operation lacks."""
    return f"; write --{name}" if name in ("backend", "dtype", "device") else hint_of(name, parameters)


def _example(name: str, values: Mapping[str, Any]) -> str:
    """Return what an argument may be beside those that are given, as it is written here."""
    if name == "interleaved":
        return "true"
    d = values["x"].shape[-1] if "x" in values else 512
    if name == "num_heads":
        return str(math.gcd(8, d))
    examples = {
        "query": (8, 8, 512, 64),
        "x": (8, 128, d),
        **{like: (d, values[given].shape[-1]) for like, given in _AS_WIDE.items() if given in values},
        "w_1": (d, 4 * d),
        **{after: (values[given].shape[-1], d) for after, given in _AFTER.items() if given in values},
        **dict.fromkeys(("cos", "sin"), (*values["x"].shape[-2:-1], d // 2) if "x" in values else ()),
    }
    if "cos" in values:
        examples["sin"] = tuple(values["cos"].shape)
    return "x".join(map(str, examples.get(name, (d, d))))


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
    """Print backend, dtype and device, a row for each operation, above the smaller ones that it calls, and what to install."""
    console = SafeConsole()
    calls = list(explanation.walk())
    first = next((each for each in calls if each.dtype), explanation)
    console.print("on " + ", ".join(filter(None, (explanation.backend, first.dtype, first.device))), highlight=False)
    console.print(table(console, _COLUMNS, list(_rows(explanation, 0, 1))))
    for line in known.advice_on_kernels((each.backend, each.op) for each in calls if "cpu" in each.device.lower()):
        prose_console().print(Text(line))


def _rows(each: Explanation, depth: int, count: int) -> Iterator[tuple[Text, ...]]:
    """Yield the rows of an operation and of those it calls; repeated calls share a row."""
    name = "  " * depth + each.op + (f" x{count}" if count > 1 else "")
    shown = each.shapes[:1] if each.calls else each.shapes  # the smaller operations show the weights they use
    arrays = "\n".join(f"{array} {'x'.join(map(str, shape))}" for array, shape in shown)
    below = {f"{kernel}: is not installed: {line}" for kernel, line in known.absent_kernels(each.backend, each.op).items()}
    refused = "\n".join(line for kernel, reason in each.rejected if (line := f"{kernel}: {reason}") not in below)
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


def _call(term: str) -> str:
    """Return a call of a mask or bias with the names of its arguments, such as ``window(left, right)``."""
    parameters = inspect.signature(_TERMS[term]).parameters.values()
    return f"{term}({', '.join(each.name for each in parameters if each.default is each.empty)})"


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
            case ast.Call(ast.Attribute(ast.Name("mha"), term), arguments, keywords):
                return visit(ast.Call(ast.Name(term), arguments, keywords))
            case ast.Call(ast.Name("key_lengths"), [ast.List() as lengths], []):
                return masks.key_lengths(integers(backend.xp, visit(lengths), device))
            case ast.Call(ast.Name(term), arguments, []) if term in _TERMS:
                return _TERMS[term](*map(visit, arguments))
            case ast.Name(term) | ast.Attribute(ast.Name("mha"), term) if term in _TERMS:
                raise ValueError(f"{name}={text} cannot be read; write {term} with parentheses: {_call(term)}")
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
    settings = {name: values.pop(name) for name in _SETTINGS if name in values}
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
        except UnknownDevice:
            raise
        except (ValueError, TypeError) as error:
            raise typer.BadParameter(str(error), param_hint="NAME=VALUE") from error
        if as_json:
            typer.echo(json.dumps(record(explanation), indent=2))
        else:
            show(explanation)
