"""The sandbox of chat templates: that of jinja2, with bounds on steps and memory. A template is a program, from anywhere.

Every node of a template that is evaluated, and every item that a filter yields, is a step. Every operation on texts and lists
uses as much memory as its operands have, with copies of one value counted each time, or as its result will have if that grows
faster. What could cost more than this is not in the sandbox.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace, pass_context, pass_environment
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

SOURCE, STEPS, MEMORY = 100_000, 500_000, 10_000_000
"""Bounds on the characters of a template, and on the steps and the bytes of one chat: a second or two, and 10 MB."""
_COPIES = 100  # of the chat itself that may be made besides: long texts have to fit too
_DEEP, _BITS = 50, 60  # bounds on the nesting of values, and on the bits of integers, whose hashes then differ
_COSTLY = "lipsum pprint striptags urlize wordwrap xmlattr"
_BUILT_IN = """capitalize casefold center copy count endswith expandtabs find format format_map get index isalnum isalpha
    isdecimal isdigit islower isnumeric isspace istitle isupper items join keys ljust lower lstrip partition removeprefix
    removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
    values zfill"""
_PRODUCTS = """batch center expandtabs indent join ljust lstrip rfind rindex rjust rpartition rsplit rstrip slice strip
    trim zfill"""
"""What may take time or memory like the product of its arguments: widths and counts, separators, and characters sought."""
_LISTS = "batch groupby join list rsplit slice sort split splitlines title unique wordcount"
"""What makes a list of a text."""
_BY_REFERENCE = {"count", "d", "default", "first", "last", "length"}
"""Filters that do not look into their values."""


class _Budget:
    def __init__(self, chat: Any) -> None:
        self.steps, self.memory = STEPS, 1 << 62
        self.use_for(chat)
        self.memory = self.bound = MEMORY + _COPIES * ((1 << 62) - self.memory)

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise OverflowError(f"it takes more than {STEPS:,} steps")

    def use(self, count: int) -> None:
        self.memory -= count
        if self.memory < 0:
            raise OverflowError(f"its texts and lists take more than {self.bound:,} bytes")

    def use_for(self, value: Any, depth: int = 0) -> None:
        """Use about as many bytes as a value has, and all that it refers to."""
        if depth > _DEEP:
            raise OverflowError(f"its values are nested more than {_DEEP} deep")
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise OverflowError(f"its integers have more than {_BITS} bits")
        if isinstance(value, Namespace):
            value = value._Namespace__attrs  # which its text shows
        if isinstance(value, str):
            self.use(50 + len(value))
        elif isinstance(value, range):
            self.use(40 * len(value))
        elif isinstance(value, Collection):
            self.use(50)
            for item in value.items() if isinstance(value, Mapping) else value:
                self.use_for(item, depth + 1)
        else:
            self.use(50)


_budget: ContextVar[_Budget] = ContextVar("budget")


@contextmanager
def bounded(chat: Any) -> Iterator[None]:
    """Bound what a template may cost that is used inside and shows ``chat``; OverflowError says what was exceeded."""
    token = _budget.set(_Budget(chat))
    try:
        yield
    finally:
        _budget.reset(token)


def _pay(name: str, arguments: list[Any], named: Mapping[str, Any]) -> None:
    """Pay for a filter, a test or a method, before it is called."""
    budget, values = _budget.get(), [*arguments, *named.values()]
    budget.step()
    if name in _BY_REFERENCE:
        return
    for value in values:
        budget.use_for(value)
    if name in _PRODUCTS.split():
        budget.use(
            math.prod(abs(x) + 1 if isinstance(x, int) else len(x) + 1 if isinstance(x, Collection) else 1 for x in values)
        )
    elif name == "replace":
        text, old, new = map(str, values[:3]) if len(arguments) > 2 else [str(values[0])] * 3
        budget.use(text.count(old) * len(new) if len(arguments) > 2 else math.prod(len(str(x)) + 1 for x in values))
    if name == "round":
        budget.use(sum(1000 * abs(x) for x in values[1:] if isinstance(x, int)))  # a power of ten
    if name in _LISTS.split() and isinstance(arguments[0], str):
        budget.use(50 * (arguments[0].count(str(values[1])) if len(values) > 1 and values[1] else len(arguments[0]) // 2))


def _pay_for_format(form: str, values: Any) -> None:
    """Pay for ``form % values``."""
    budget = _budget.get()
    widths = [int(digits[:9]) for digits in re.findall(r"\d+", form)]
    if "*" in form:
        widths += [abs(x) for x in (values if isinstance(values, tuple) else (values,)) if isinstance(x, int)]
    before = budget.memory
    budget.use_for(values)
    budget.use(form.count("%") * (before - budget.memory + max(widths, default=0)))


def _counted(name: str, function: Any, at: int) -> Callable[..., Any]:
    """Return a filter or test that pays for its arguments, which begin at position ``at``, and for each item that it yields."""

    @wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        values = [list(x) if name == "join" and isinstance(x, Iterator) else x for x in arguments[at:]]
        _pay(name, values, named)
        if name == "format":
            _pay_for_format(str(values[0]), named or tuple(values[1:]))
        result = function(*arguments[:at], *values, **named)
        return _each(result) if isinstance(result, Iterator) else result

    return counted


def _each(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _budget.get().step()
        _budget.get().use_for(item)
        yield item


@pass_context  # jinja2 does not evaluate such filters while it compiles
def _step(_: Any, value: Any, count: int) -> Any:
    _budget.get().step(count)
    return value


@pass_context
def _use(_: Any, value: Any) -> Any:
    _budget.get().step()
    _budget.get().use_for(value)
    return value


@pass_environment
def _sum(environment: Any, values: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    for value in values if attribute is None else map(make_attrgetter(environment, attribute), values):
        start = environment.call_binop(None, "+", start, value)
    return start


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    spaces = [indent if isinstance(indent, int) else len(indent or ""), *map(len, separators or ())]
    # items are nested: 50 deep at most, and few of them so deep; json makes the spaces of one level for any value
    _budget.get().use(10 * sum(spaces) * (len(str(value)) + 1))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    _budget.get().use(256 * len(form))  # the longest result of Python
    return datetime.now().strftime(form)


class _Counts(NodeTransformer):
    """Insert filters that count: steps where code is repeated, and memory where Python works on values without a hook."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        is_repeated = isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block)
        count = sum(1 for _ in node.find_all(nodes.Node)) if is_repeated else 0
        node = super().generic_visit(node, *args, **kwargs)
        match node:
            case nodes.For() | nodes.Macro() | nodes.CallBlock() | nodes.Block():
                node.body.insert(0, nodes.ExprStmt(self._filter("count steps", nodes.Const(0), nodes.Const(count))))
                if isinstance(node, nodes.For) and node.test is not None:
                    node.test = self._filter("count steps", node.test, nodes.Const(count))
            case nodes.Output() | nodes.Concat():
                node.nodes = [x if isinstance(x, nodes.TemplateData) else self._filter("count memory", x) for x in node.nodes]
            case nodes.Compare():
                node.expr = self._filter("count memory", node.expr)
            case nodes.Operand():
                node.expr = self._filter("count memory", node.expr)
            case nodes.Getitem(arg=nodes.Slice()):
                node.node = self._filter("count memory", node.node)
            case nodes.List() | nodes.Dict():
                return self._filter("count memory", node)
            case nodes.Tuple(ctx="load"):
                return self._filter("count memory", node)
        return node

    def _filter(self, name: str, value: Any, *arguments: nodes.Expr) -> nodes.Filter:
        return nodes.Filter(value, name, list(arguments), [], None, None, lineno=value.lineno)


class _Generation(Extension):
    """The block {% generation %} is its contents: it tells what an assistant wrote, which matters for training only."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment of transformers, for use inside of ``bounded``."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))
    intercepted_unops = frozenset(("+", "-"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False)
        for name in _COSTLY.split():
            self.filters.pop(name, None)
            self.globals.pop(name, None)
        self.filters |= {"sum": _sum, "tojson": _tojson}
        for table in (self.filters, self.tests):
            for name, function in table.items():
                table[name] = _counted(name, function, hasattr(function, "jinja_pass_arg"))
        self.filters |= {"count steps": _step, "count memory": _use}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Counts().visit(source), *args, **kwargs)

    def _parse(self, source: str, *args: Any, **kwargs: Any) -> nodes.Template:
        if len(source) > SOURCE:
            raise OverflowError(f"it has more than {SOURCE:,} characters")
        return super()._parse(source, *args, **kwargs)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        joined = []
        for piece in pieces:
            _budget.get().use(8 + len(piece))
            joined.append(piece)
        return "".join(joined)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        known = attr in _BUILT_IN.split() or not callable(value) or type(obj).__module__.startswith("jinja2.")
        return known and super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _budget.get().step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _budget.get().step()
        _budget.get().use_for(argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  as in jinja2
        name = getattr(__obj, "__name__", "")
        values = [list(x) if name == "join" and isinstance(x, Iterator) else x for x in args]
        _pay(name, [getattr(__obj, "__self__", __obj), *values], kwargs)
        return super().call(__context, __obj, *values, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        budget.step()
        if operator == "**" and isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > 2 * _BITS:
            raise OverflowError(f"its integers have more than {_BITS} bits")
        if operator == "%" and isinstance(left, str):
            _pay_for_format(left, right)
        budget.use_for(left)
        budget.use_for(right)
        if operator == "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(value, Collection) and isinstance(count, int):
                    budget.use(max(0, count) * (8 + len(value) if isinstance(value, str) else 8 * len(value)))
        return super().call_binop(context, operator, left, right)

    def call_unop(self, context: Any, operator: str, arg: Any) -> Any:
        return super().call_unop(context, operator, _use(context, arg))

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is None:
            return None
        form, is_map = value.__self__, value.__name__ == "format_map"
        formatter = _EscapeFormatter(self, escape=form.escape) if isinstance(form, Markup) else _Formatter(self)

        def format(*args: Any, **kwargs: Any) -> str:
            return type(form)(formatter.vformat(form, () if is_map else args, args[0] if is_map else kwargs))

        return format


class _Bounded:
    def format_field(self, value: Any, format_spec: str) -> Any:
        widths = (int(digits[:9]) for digits in re.findall(r"\d+", format_spec))
        _budget.get().use(sum(widths))
        return super().format_field(_use(None, value), format_spec)  # type: ignore[misc]


class _Formatter(_Bounded, SandboxedFormatter):
    pass


class _EscapeFormatter(_Bounded, SandboxedEscapeFormatter):
    pass
