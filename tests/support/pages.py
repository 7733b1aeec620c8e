"""The code blocks of a Markdown page: their text, the output that the page shows for them, and how to run them.

The ``python`` blocks of a page run in order, in one process. A block that imports mha_core or mha_text starts with an empty
namespace; any other continues the block before it. A ``text`` block right after a ``python`` block shows its output. In
``console`` blocks, lines that begin with ``$ `` are commands, each followed by its output. ``...`` matches any output. A
``python`` block that begins with ``# name.py`` is also written to a file of that name, in the folder where the page's code and
commands run. A block that cannot run in the tests has the reason on the line before, in a comment that readers of the page do
not see: ``<!-- not run: it needs a GPU -->``.
"""

import contextlib
import doctest
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from project import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "certificates" not in path.parts),
]
MODEL = "path/to/all-MiniLM-L6-v2"
"""The model directory that pages write in examples."""

_BLOCK = re.compile(r"^(?:<!-- not run: (?P<why>.+?) -->\n+)?^```(?P<kind>\S+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_FLAGS = doctest.ELLIPSIS


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    kind: str
    """The word after the fence."""
    code: str
    line: int
    """Number of its first line of code in the page, from 1."""
    shown: str | None = None
    """The output that the page shows; None if it shows none."""
    not_run: str = ""
    """Why the block is not run; "" if it is."""

    @property
    def stands_alone(self):
        return re.search(r"^import mha_(core|text)\b", self.code, re.MULTILINE) is not None

    @property
    def file(self):
        """The name of the file that the block is written to, or None."""
        name = re.match(r"# (\w+\.py)\n", self.code)
        return name[1] if name and self.kind == "python" else None


@dataclass(frozen=True)
class Command:
    """A command of a console block."""

    line: str
    """The command without its comment."""
    shown: str | None
    """The output that the page shows; None if it shows none."""
    not_run: str = ""
    """Why the command is not run; "" if it is."""


def blocks(page):
    """Return the blocks of a page in order. A ``text`` block right after a ``python`` block becomes its ``shown``."""
    text, parts, end = page.read_text(encoding="utf-8"), [], 0
    for match in _BLOCK.finditer(text):
        follows = parts and parts[-1].kind == "python" and not text[end : match.start()].strip()
        if match["kind"] == "text" and follows:
            last = parts.pop()
            parts.append(Block(last.kind, last.code, last.line, match["code"], last.not_run))
        else:
            line = text.count("\n", 0, match.start("code")) + 1
            parts.append(Block(match["kind"], match["code"], line, not_run=match["why"] or ""))
        end = match.end()
    return parts


def commands(page):
    """Return the commands of a page's console blocks."""
    lines = []
    for block in blocks(page):
        if block.kind == "console":
            for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
                line, _, shown = part.partition("\n")
                lines.append(Command(line.partition(" #")[0].strip(), shown or None, block.not_run))
    return lines


def write_files(page, folder):
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.code, encoding="utf-8")


def is_as_shown(shown, printed):
    return doctest.OutputChecker().check_output(_right_trimmed(shown), _right_trimmed(printed), _FLAGS)


def _right_trimmed(text):
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())


def run(page, model):
    """Run the python blocks of a page; return what each of them printed, None for a block that is not run."""
    printed, names = [], {}
    for block in blocks(page):
        if block.kind != "python":
            continue
        if block.not_run:
            printed.append(None)
            continue
        if block.stands_alone:
            names = {"__name__": "__main__"}
        lines = "\n" * (block.line - 1) + block.code.replace(MODEL, model)  # so that a traceback shows the page's line
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(lines, str(page), "exec"), names)
        printed.append(out.getvalue())
    return printed


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2])))
