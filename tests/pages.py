"""The code of a Markdown page: what stands in its blocks, what they are said to print, and how they run.

``python`` blocks of a page run in order, in one process. One that imports mha_core starts anew, as if alone; any other goes on
from the one before. A ``text`` block right after one is what it prints. In ``console`` blocks, lines that begin with ``$ `` are
commands, and what follows is what they print. ``...`` stands for anything. A ``python`` block that begins with ``# name.py`` is
also a file of that name, where the page's code and commands run. A block that cannot run here says why, in a comment that no
reader sees: ``<!-- not run: it needs a GPU -->`` on the line before.
"""

import contextlib
import doctest
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "certificates" not in path.parts),
]
MODEL = "path/to/all-MiniLM-L6-v2"
"""What pages write for the directory of a model."""

_BLOCK = re.compile(r"^(?:<!-- not run: (?P<why>.+?) -->\n+)?^```(?P<kind>\S+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_FLAGS = doctest.ELLIPSIS


@dataclass(frozen=True)
class Block:
    """kind: the word after the fence. line: of its first line, from 1. shown: what it is said to print. not_run: why, or ""."""

    kind: str
    code: str
    line: int
    shown: str | None = None
    not_run: str = ""

    @property
    def stands_alone(self):
        return re.search(r"^import mha_core", self.code, re.MULTILINE) is not None

    @property
    def file(self):
        """The name of the file that it is, or None."""
        name = re.match(r"# (\w+\.py)\n", self.code)
        return name[1] if name and self.kind == "python" else None


@dataclass(frozen=True)
class Command:
    """A line of a console block, without its comment, and what it is said to print; None where nothing is shown."""

    line: str
    shown: str | None
    not_run: str = ""


def blocks(page):
    """The blocks of a page in order; a ``text`` block right after a ``python`` one is that one's ``shown``."""
    text, found, end = page.read_text(encoding="utf-8"), [], 0
    for match in _BLOCK.finditer(text):
        follows = found and found[-1].kind == "python" and not text[end : match.start()].strip()
        if match["kind"] == "text" and follows:
            last = found.pop()
            found.append(Block(last.kind, last.code, last.line, match["code"], last.not_run))
        else:
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(match["kind"], match["code"], line, not_run=match["why"] or ""))
        end = match.end()
    return found


def commands(page):
    """The commands of a page's console blocks."""
    found = []
    for block in blocks(page):
        if block.kind == "console":
            for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
                line, _, shown = part.partition("\n")
                found.append(Command(line.partition(" #")[0].strip(), shown or None, block.not_run))
    return found


def write_files(page, folder):
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.code, encoding="utf-8")


def is_as_shown(shown, printed):
    return doctest.OutputChecker().check_output(_right_trimmed(shown), _right_trimmed(printed), _FLAGS)


def _right_trimmed(text):
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())


def run(page, model):
    """Run the python blocks of a page; what each of them printed, None for one that is not run."""
    printed, names = [], {}
    for block in blocks(page):
        if block.kind != "python":
            continue
        if block.not_run:
            printed.append(None)
            continue
        if block.stands_alone:
            names = {"__name__": "__main__"}
        lines = "\n" * (block.line - 1) + block.code.replace(MODEL, model)  # so that a traceback tells the page's line
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(lines, str(page), "exec"), names)
        printed.append(out.getvalue())
    return printed


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2])))
