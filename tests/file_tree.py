"""The tree of files in docs/architecture.md: every package and module with the first line of its docstring or comment.

``make tree`` writes it; tests/test_docs.py checks that it is up to date.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = ("mha_core", "backends", "asv_benches")
BEGIN, END = "<!-- tree -->\n", "<!-- end tree -->"
SOURCES = {".py", ".cpp", ".h"}
COLUMN = 34
"""Where the docstrings begin."""
GENERATED = {"env", "html", "results"}
"""Folders that benchmarks write: commits of this package lie in asv_benches/env."""


def tree():
    """Return the tree as the Markdown block between the two marks of the page."""
    lines = [line for folder in FOLDERS for line in _lines(ROOT / folder, 0)]
    return "\n".join(["```text", *lines, "```\n"])


def written():
    """Return the block that the page has now."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def write():
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE} must have the lines {BEGIN.strip()} and {END}, between which the tree is written"
    PAGE.write_text(f"{before}{begin}{tree()}{end}{after}", encoding="utf-8")


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
    write()
