"""The page docs/tree.md: every package and module with the first line of its docstring or comment.

``python tests/support/file_tree.py`` writes it; tests/docs/test_docs.py checks that it is up to date.
"""

import ast

from project import ROOT

PAGE = ROOT / "docs" / "tree.md"
FOLDERS = ("mha_core", "backends", "text", "conformance", "asv_benches")
_HEAD = """# The tree of files

Every folder and module, with the first line of its docstring; `python tests/support/file_tree.py` writes this page.
[Architecture](architecture.md) says what each package is for, and what it may import.
"""
SOURCES = {".py", ".cpp", ".h"}
COLUMN = 34
"""Where the docstrings begin."""
GENERATED = {"env", "html", "results"}
"""Folders that benchmarks write: commits of this package lie in asv_benches/env."""


def tree():
    """Return the text of the page: a section for each folder, and for each folder in it."""
    return "\n".join([_HEAD, *(line for name in FOLDERS for line in _section(ROOT / name, "##"))])


def _section(folder, heading):
    """Yield the lines of a section: the files of a folder, and the folders in it as sections below, or in the same block."""
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and _has_sources(path)] if heading == "##" else []
    own = [line for path in sorted(folder.iterdir()) if path not in inner for line in _lines(path, 0)]
    yield f"{heading} {folder.relative_to(ROOT)}\n"
    if description := _first_line(folder / "__init__.py"):
        yield f"{description}\n"
    if own:
        yield from ("```text", *own, "```\n")
    for path in inner:
        yield from _section(path, f"{heading}#")


def _lines(path, depth):
    if path.is_dir():
        if _has_sources(path):
            yield _line(f"{path.name}/", path / "__init__.py", depth)
            for inner in sorted(path.iterdir()):
                yield from _lines(inner, depth + 1)
    elif path.suffix in SOURCES and not path.name.startswith("__"):
        yield _line(path.name, path, depth)


def _has_sources(folder):
    return folder.name not in GENERATED and any(inner.suffix in SOURCES for inner in folder.rglob("*"))


def _line(name, module, depth):
    return f"{'    ' * depth + name:<{COLUMN - 1}} {_first_line(module)}".rstrip()


def _first_line(module):
    return _description(module).partition("\n")[0]


def _description(module):
    if not module.exists():
        return ""
    text = module.read_text(encoding="utf-8")
    return text.removeprefix("// ") if module.suffix != ".py" else ast.get_docstring(ast.parse(text)) or ""


if __name__ == "__main__":
    PAGE.write_text(tree(), encoding="utf-8")
