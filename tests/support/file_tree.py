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
    """Return the text of the page."""
    lines = [line for folder in FOLDERS for line in _lines(ROOT / folder, 0)]
    return "\n".join([_HEAD, "```text", *lines, "```\n"])


def _lines(path, depth):
    if path.is_dir():
        if path.name not in GENERATED and any(inner.suffix in SOURCES for inner in path.rglob("*")):
            yield _line(f"{path.name}/", path / "__init__.py", depth)
            for inner in sorted(path.iterdir()):
                yield from _lines(inner, depth + 1)
    elif path.suffix in SOURCES and not path.name.startswith("__"):
        yield _line(path.name, path, depth)


def _line(name, module, depth):
    return f"{'    ' * depth + name:<{COLUMN - 1}} {_description(module).partition(chr(10))[0]}".rstrip()


def _description(module):
    if not module.exists():
        return ""
    text = module.read_text(encoding="utf-8")
    return text.removeprefix("// ") if module.suffix != ".py" else ast.get_docstring(ast.parse(text)) or ""


if __name__ == "__main__":
    PAGE.write_text(tree(), encoding="utf-8")
