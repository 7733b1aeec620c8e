"""Mutation operators: each takes a node of a syntax tree, and yields nodes to put in its place.

Docstrings, annotations, decorators, imports, assertions, the text and the conditions of errors, and ``__all__`` are left alone.
Constants and branches that matter for speed only cannot be told from others; their mutants live.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeGuard

IDLE = {"copy", "device", "strict"}
"""Keyword arguments that change no answer on a CPU."""
COMMUTATIVE = {"add", "max", "maximum", "min", "minimum", "multiply", "swapaxes", "vdot", "vecdot"}
PAIRS = [("min", "max"), ("minimum", "maximum"), ("any", "all"), ("cos", "sin")]
NAMES = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
_OPERATORS = [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or)]
_OPERATORS += [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)]
SWAPPED = {a: b for pair in _OPERATORS for a, b in (pair, pair[::-1])}
EDGES = (64, 1000)
_ARRAYS = ("ndarray", "Array", "Tensor", "AttentionState", "Any")
_UNWRAPPED = ("property", "cached_property", "cache", "staticmethod", "classmethod", "overload")
_SMALL = (ast.Constant, ast.Name, ast.Slice, ast.Tuple, ast.UnaryOp, ast.Starred)
_TYPES = ("Callable", "dict", "frozenset", "list", "set", "tuple")

Place = tuple[ast.AST, str]
"""A node, and the qualified name of the function that it belongs to."""


@dataclass(frozen=True, eq=False)
class Mutant:
    """A module with one node replaced."""

    module: str
    function: str
    operator: str
    line: int
    text: str
    """The source of that line."""
    change: str
    _whole: ast.Module
    _node: ast.AST
    _new: ast.AST

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """The fields that identify the mutant, whatever changes elsewhere in the module."""
        return self.module, self.function, self.operator, self.text, self.change

    @property
    def tree(self) -> ast.Module:
        """The tree of the mutated module, which notes that the change ran."""
        new = ast.copy_location(_noted(self._new), self._node)
        return ast.fix_missing_locations(copy.deepcopy(self._whole, {id(self._node): new}))


def mutants(source: str, module: str = "") -> list[Mutant]:
    """Return all mutants of a source, in the order of its lines."""
    tree, lines = ast.parse(source), source.splitlines()
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    by_key: dict[tuple[str, ...], Mutant] = {}
    for node, function in _places(tree, ""):
        line = _line(parents, node)
        for name, operator in OPERATORS.items():
            for described, new in operator(node):
                change = described or _change(parents, node, new)
                mutant = Mutant(module, function, name, line, lines[line - 1].strip(), change, tree, node, new)
                for again in count(2):  # the same change twice in a line
                    if mutant.key not in by_key:
                        break
                    mutant = replace(mutant, change=f"{change} ({again})")
                by_key[mutant.key] = mutant
    return sorted(by_key.values(), key=lambda mutant: mutant.line)


# which nodes may be changed


def _places(node: ast.AST, function: str) -> Iterator[Place]:
    """Yield the nodes below this one that may be changed."""
    for child in _children(node, function):
        inside = f"{function}.{child.name}".lstrip(".") if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else function
        yield child, inside
        yield from _places(child, inside)


def _children(node: ast.AST, function: str) -> Iterator[ast.AST]:
    match node:
        case ast.FunctionDef(args=args, body=body):
            children = [*_children(args, function), *body]
        case ast.ClassDef(body=children):
            pass
        case ast.AnnAssign(value=value):
            children = [] if value is None else [value]
        case ast.If(test=test, orelse=orelse) if _checks(node) or "TYPE_CHECKING" in ast.unparse(test):
            children = orelse
        case ast.arguments():
            children = [*node.defaults, *(x for x in node.kw_defaults if x is not None)]
        case _:
            children = list(ast.iter_child_nodes(node))
    return (child for child in children if not _is_left_alone(child, function))


def _checks(node: ast.AST) -> bool:
    """Return whether a node is an ``if`` that only raises an error."""
    return isinstance(node, ast.If) and all(isinstance(x, ast.Raise) for x in node.body)


def _is_left_alone(node: ast.AST, function: str) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Import() | ast.ImportFrom() | ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Global() | ast.arg():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.Call(func=ast.Name(id="isinstance" | "hasattr")):
            return True
        case ast.Assign(value=ast.Subscript() | ast.BinOp(op=ast.BitOr())) if not function:  # a name for a type
            return True
        case ast.Subscript(value=ast.Name(id=name)):
            return name in _TYPES
    return False


def _line(parents: dict[int, ast.AST], node: ast.AST) -> int:
    """Return the line of a node, or of the first node around it that has one."""
    while not hasattr(node, "lineno"):
        node = parents[id(node)]
    return int(node.lineno)


def _change(parents: dict[int, ast.AST], node: ast.AST, new: ast.AST) -> str:
    """Return what a mutant changes, with so much around the node that the change can be read."""
    around = node
    while not isinstance(around, (ast.expr, ast.stmt)) or isinstance(around, _SMALL):
        outer = parents[id(around)]
        if isinstance(outer, ast.Tuple) and len(outer.elts) > 6:
            break
        around = outer
    if isinstance(around, ast.stmt) and not isinstance(around, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)):
        return f"{ast.unparse(node)} -> {ast.unparse(new)}"
    return f"{ast.unparse(around)} -> {ast.unparse(copy.deepcopy(around, {id(node): new}))}"


# operators


Edits = Iterator[tuple[str | None, ast.AST]]
"""Descriptions, None where old and new source say enough, and nodes that replace the one given."""


def drop(node: ast.AST) -> Edits:
    """Drop a statement that changes something, or a keyword argument."""
    match node:
        case (
            ast.AugAssign()
            | ast.Expr()
            | ast.Delete()
            | ast.Continue()
            | ast.Assign(targets=[ast.Subscript() | ast.Attribute()])
        ):
            yield f"without {ast.unparse(node)}", ast.Pass()
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in _read(value):
            yield f"without {ast.unparse(node)}", ast.Pass()
        case ast.Call(keywords=keywords):
            for one in keywords:
                if one.arg not in IDLE:
                    yield None, _replaced(node, keywords=_without(keywords, one))


def shift(node: ast.AST) -> Edits:
    """Add 1 to an integer or 1% to another number, or move a bound of a slice or range inwards by one."""
    match node:
        case ast.Constant(value=bool() | str() | None):
            return
        case ast.Constant(value=int(value)):
            yield None, ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield None, ast.Constant(value * 1.01 or 0.01)
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None and _read(lower):
                yield None, _replaced(node, lower=ast.BinOp(lower, ast.Add(), ast.Constant(1)))
            if upper is not None and _read(upper):
                yield None, _replaced(node, upper=ast.BinOp(upper, ast.Sub(), ast.Constant(1)))
        case ast.Call(func=ast.Name(id="range" | "slice"), args=[*first, last]) if len(first) < 2:
            if _read(last) and not isinstance(last, ast.Starred):
                yield None, _replaced(node, args=[*first, ast.BinOp(last, ast.Sub(), ast.Constant(1))])


def swap(node: ast.AST) -> Edits:
    """Swap + and -, * and /, min and max, < and <=, and the like, or the first two arguments; drop a sign."""
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in SWAPPED:
            yield None, _replaced(node, op=SWAPPED[type(op)]())
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                if type(op) in SWAPPED:
                    yield None, _replaced(node, ops=[*ops[:at], SWAPPED[type(op)](), *ops[at + 1 :]])
        case ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=operand):
            yield None, copy.deepcopy(operand)
        case ast.Name(id=name) if name in NAMES:
            yield None, _replaced(node, id=NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield None, _replaced(node, attr=NAMES[name])
        case ast.Call(func=func, args=[first, second, *rest]):
            commutes = ast.unparse(func).rpartition(".")[2].lstrip("_") in COMMUTATIVE or ast.dump(first) == ast.dump(second)
            if not commutes and not any(isinstance(x, ast.Starred) for x in (first, second)):
                yield None, _replaced(node, args=[second, first, *rest])


def ignore(node: ast.AST) -> Edits:
    """Take a condition as always true or never true, leave an operand of ``and`` or ``or`` out, or never match a case."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.NamedExpr) and not _checks(node):
            for value in (True, False):
                text = f"{'always' if value else 'never'} {ast.unparse(test)}"
                yield text, _replaced(node, test=ast.Constant(value))
        case ast.comprehension(ifs=[*ifs]):
            for one in ifs:
                yield f"always {ast.unparse(one)}", _replaced(node, ifs=_without(ifs, one))
        case ast.BoolOp(values=[first, second]):
            yield from ((None, copy.deepcopy(operand)) for operand in (second, first))
        case ast.BoolOp(values=values):
            yield from ((None, _replaced(node, values=_without(values, one))) for one in values)
        case ast.match_case(pattern=pattern) if not (isinstance(pattern, ast.MatchAs) and pattern.pattern is None):
            yield f"never case {ast.unparse(pattern)}", _replaced(node, guard=ast.Constant(False))


def alias(node: ast.AST) -> Edits:
    """Read the first element, or as many from the start, in place of those that an index or slice selects."""
    if not isinstance(node, ast.Subscript) or ast.unparse(node.value).lstrip("_").isupper():
        return
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for at, part in enumerate(parts):
        if not _read(part) or (isinstance(part, ast.Slice) and (part.lower is None or not _read(part.lower))):
            continue
        inner = part.value if isinstance(part, ast.Starred) else part
        first: ast.expr = _call("_mutant_first", _as_call(inner))
        first = ast.Starred(first, ast.Load()) if isinstance(part, ast.Starred) else first
        index = ast.Tuple([*parts[:at], first, *parts[at + 1 :]], ast.Load()) if isinstance(node.slice, ast.Tuple) else first
        yield f"{ast.unparse(node)} reads the first for {ast.unparse(part)}", _replaced(node, slice=index)


def keep(node: ast.AST) -> Edits:
    """Return a function's first result again for arguments of the same shapes."""
    if _can_be_wrapped(node) and not node.name.startswith("supports"):
        yield _wrapped(node, "keeps its first result", ast.Name("_mutant_kept", ast.Load()))


def round_(node: ast.AST) -> Edits:
    """Round the arrays that a function returns to float16."""
    if _can_be_wrapped(node) and _returns_arrays(node):
        yield _wrapped(node, "rounds its result", ast.Name("_mutant_rounded", ast.Load()))


def beyond(node: ast.AST) -> Edits:
    """Turn the rows of a function's result by one, if an axis of its arguments is longer than an edge."""
    if _can_be_wrapped(node) and _returns_arrays(node):
        for edge in EDGES:
            yield _wrapped(node, f"turns its rows beyond {edge}", _call("_mutant_turned_beyond", ast.Constant(edge)))


_FUNCTIONS: tuple[Callable[[ast.AST], Edits], ...] = (drop, shift, swap, ignore, alias, keep, round_, beyond)
OPERATORS = {function.__name__.rstrip("_"): function for function in _FUNCTIONS}


def _read(node: ast.AST) -> set[str]:
    """Return the names that an expression reads."""
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def _replaced(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of a node with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return copy.deepcopy(new)


def _as_call(part: ast.expr) -> ast.expr:
    """Return a slice as a call, which may stand outside of brackets."""
    if not isinstance(part, ast.Slice):
        return part
    return _call("slice", *(x or ast.Constant(None) for x in (part.lower, part.upper, part.step)))


def _without(nodes: list[Any], one: ast.AST) -> list[Any]:
    return [node for node in nodes if node is not one]


def _can_be_wrapped(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    """Return whether a node is a function that may get a decorator: no generator, and no property."""
    if not isinstance(node, ast.FunctionDef) or node.name.startswith("__") or _is_abstract(node):
        return False
    if any(word in ast.unparse(decorator) for decorator in node.decorator_list for word in _UNWRAPPED):
        return False
    return not any(isinstance(x, (ast.Yield, ast.YieldFrom)) for x in ast.walk(node))


def _is_abstract(node: ast.FunctionDef) -> bool:
    return isinstance(node.body[-1], (ast.Expr, ast.Raise)) and len(node.body) == 1 + (ast.get_docstring(node) is not None)


def _returns_arrays(node: ast.FunctionDef) -> bool:
    return node.returns is not None and any(word in ast.unparse(node.returns) for word in _ARRAYS)


def _noted(new: ast.AST) -> ast.AST:
    """Return a node that calls ``_mutant_ran`` when it runs, if the node may stand inside of a call; else the node itself."""
    match new:
        case ast.Pass():
            return ast.Expr(_call("_mutant_ran"))
        case ast.If(test=ast.Constant() as test) | ast.IfExp(test=ast.Constant() as test):
            return _replaced(new, test=_call("_mutant_ran", test))
        case ast.Slice() | ast.Starred() | ast.Tuple():
            return new
        case ast.expr() if isinstance(getattr(new, "ctx", ast.Load()), ast.Load):
            return _call("_mutant_ran", new)
    return new


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _wrapped(node: ast.FunctionDef, effect: str, decorator: ast.expr) -> tuple[str, ast.AST]:
    return f"{node.name} {effect}", _replaced(node, decorator_list=[decorator, *node.decorator_list])
