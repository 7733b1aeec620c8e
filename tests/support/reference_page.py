"""The lists of names in docs/reference.md: a signature and the first line of the docstring for each name that it describes.

``python tests/support/reference_page.py`` writes them before the comments ``<!-- described``, which hold Sphinx's directives;
tests/docs/test_docs.py checks that they are up to date. docs/described_names.py makes the built page of the directives.
"""

import inspect
import re
from importlib import import_module
from pkgutil import resolve_name

from project import ROOT
from public_surface import signature

PAGE = ROOT / "docs" / "reference.md"
WIDTH = 100
"""Letters of a signature; those of longer ones are left out."""
_LISTED = re.compile(r"(?:(?:^ *- [^\n]*\n)+\n)?^<!-- described\n(?P<directives>.*?)^-->$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^\.\. (?P<kind>[\w:]+):: (?P<name>\S+)\n(?P<body>(?:\n|   .*\n)*)", re.MULTILINE)


def written(page):
    """Return the text of a page with today's lists in it."""
    module = None

    def listed(match):
        nonlocal module
        lines = []
        for directive in _DIRECTIVE.finditer(match["directives"]):
            if directive["kind"] == "currentmodule":
                module = directive["name"]
            else:
                lines += _entry(module, **directive.groupdict())
        return "\n".join([*lines, "", match[0][match[0].index("<!--") :]])

    return _LISTED.sub(listed, page)


def _entry(module, kind, name, body):
    """Yield the line of a name, and those of the methods of a class that is described with its members."""
    if kind.startswith("py:"):  # described on the page, because its value has no docstring
        yield f"- `{name}`: {_plain(body.strip())}"
        return
    value = getattr(import_module(module), name, None) or resolve_name(name)
    protocol = getattr(value, "_is_protocol", False)  # not called to make one
    yield f"- `{_call(name.rpartition('.')[2], None if protocol else signature(value))}`: {_summary(value)}"
    for each in _methods(value, body):
        yield f"  - `{_call(each, _without_self(value, each))}`: {_summary(getattr(value, each))}"


def _methods(cls, options):
    """Yield the names of the methods that a directive with these options describes."""
    if ":members:" not in options:
        return
    inherited, chosen = re.search(r":inherited-members:(.*)", options), re.search(r":members: (.+)", options)
    classes = [each for each in cls.__mro__[:-1] if each is cls or (inherited and each.__name__ != inherited[1].strip())]
    names = chosen[1].split(", ") if chosen else dict.fromkeys(name for each in classes for name in vars(each))
    for name in names:
        public = not name.startswith("_") or f":special-members: {name}" in options
        if public and inspect.isroutine(getattr(cls, name)) and getattr(cls, name).__doc__:
            yield name


def _without_self(cls, name):
    """Return the signature of a method as its caller sees it."""
    whole = signature(getattr(cls, name))
    if inspect.isfunction(inspect.getattr_static(cls, name)):
        whole = whole.replace(parameters=list(whole.parameters.values())[1:])
    return whole


def _call(name, whole):
    """Return a call with the names of its parameters, as many as fit."""
    if whole is None:
        return name
    parameters = [each for each in whole.parameters.values() if not each.name.startswith("_")]
    for count in range(len(parameters), -1, -1):
        shown = re.sub(r"<function (\w+) at 0x\w+>", r"\1", f"{name}{whole.replace(parameters=parameters[:count])}")
        if len(shown) <= WIDTH:
            break
    return shown if count == len(parameters) else f"{shown[:-1]}, ...)"


def _summary(value):
    """Return the first sentence of a docstring, which is its first line, or ends on a later one."""
    lines = inspect.getdoc(value).partition("\n\n")[0].splitlines()
    ends = next((at for at, line in enumerate(lines) if line.endswith(".")), len(lines) - 1)
    return _plain(" ".join(lines[: ends + 1]))


def _plain(text):
    """Return text of a docstring as Markdown."""
    return text.replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
