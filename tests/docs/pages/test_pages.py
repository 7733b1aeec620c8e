"""The code in the README and the documentation runs and prints what they show, and their links lead somewhere."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from pages import MODEL, PAGES, Block, blocks, commands, is_as_shown, write_files
from processes import printed, run
from project import PATHS, ROOT, SUPPORT

BIN = Path(sys.executable).parent
# for the libraries in docs/migration.md: Keras runs on torch, and nothing uses a network
ENVIRONMENT = {"COLUMNS": "88", "TERM": "dumb", "KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1"}


def name_of(page):
    return page.relative_to(ROOT).as_posix()


SLOW = {"docs/backend.md"}
"""Pages whose commands take minutes."""


def with_kind(kind, *slow):
    pages = [page for page in PAGES if any(block.kind == kind for block in blocks(page))]
    marks = {page: pytest.mark.rotating if name_of(page) in slow else () for page in pages}
    return pytest.mark.parametrize("page", [pytest.param(page, marks=marks[page], id=name_of(page)) for page in pages])


@with_kind("python")
def test_python_runs_and_prints_what_is_shown(page, minilm, tmp_path):
    write_files(page, tmp_path)
    words = [sys.executable, "-P", "-W", "error", SUPPORT / "pages.py", page, minilm]
    lines = printed(words, cwd=tmp_path, path=[tmp_path, *PATHS], **ENVIRONMENT).splitlines()
    python = [block for block in blocks(page) if block.kind == "python"]
    for block, output in zip(python, json.loads(lines[-1]), strict=True):
        if output is None:
            continue
        assert "print(" not in block.code or output.strip(), f"line {block.line} prints nothing"
        if block.shown is not None:
            assert is_as_shown(block.shown, output), f"line {block.line} printed:\n{output}\nshown is:\n{block.shown}"


@with_kind("console", *SLOW)
def test_commands_run_and_print_what_is_shown(page, minilm, tmp_path):
    """make and pip are not run here: .ci/run runs make, which runs pip. The targets of make must exist."""
    write_files(page, tmp_path)
    exported = {}
    makefile = (ROOT / "Makefile").read_text()
    (commits,) = re.findall(r"bench-%.*\n.*\$\(filter \$\*,([\w ]+)\)", makefile)
    modules = [path.stem for path in (ROOT / "asv_benches").iterdir()]
    targets = {*re.findall(r"^([\w-]+):", makefile, re.MULTILINE), *(f"bench-{name}" for name in (*modules, *commits.split()))}
    for command in commands(page):
        words = shlex.split(command.line.replace(MODEL, str(minilm)).replace("examples/", f"{ROOT}/examples/"))
        if words[0] == "make":
            assert words[1] in targets, command.line
        elif words[0] == "export":
            name = words[1].partition("=")[0]
            done = run(
                ["sh", "-c", f"{command.line} && echo ${name}"], cwd=tmp_path, **ENVIRONMENT, PATH=f"{BIN}:{os.environ['PATH']}"
            )
            exported[name] = done.stdout.strip()
            assert exported[name], f"{command.line}\n{done.stderr}"
        elif words[:2] != ["pip", "install"] and not command.not_run:
            assert words[0] in ("mha", "pytest"), f"{command.line}: say why it is not run"
            done = run([BIN / words[0]], *words[1:], cwd=tmp_path, **ENVIRONMENT, **exported)
            assert done.returncode == 0, f"{command.line}\n{done.stderr}"
            assert done.stdout.strip() or list(tmp_path.iterdir()), f"{command.line} did nothing"
            if command.shown is not None:
                assert is_as_shown(command.shown, done.stdout), f"{command.line} printed:\n{done.stdout}"


ON_TORCH = """
from dataclasses import replace
import band_kernel, band_vjp_kernel, causal_kernel
from mha_core.plugin import hookimpl

@hookimpl
def mha_kernels():
    for module in (band_kernel, band_vjp_kernel, causal_kernel):
        for kernel in module.mha_kernels():
            yield replace(kernel, backend="torch")
"""


def test_the_kernels_of_the_guide_are_right_on_torch_too(tmp_path):
    write_files(ROOT / "docs" / "kernel.md", tmp_path)
    (tmp_path / "on_torch.py").write_text(ON_TORCH)
    chosen = ["--plugin", "on_torch", "--quick", "--dtype", "float32", "-k", "kernel and (dense or band)"]
    done = run([BIN / "mha", "conform", "torch", *chosen], cwd=tmp_path, path=[tmp_path], **ENVIRONMENT)
    assert done.returncode == 0, done.stdout
    assert "computed nothing" not in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"""\]\(([^)#\s]+)|\s(?:src|srcset)="([^"#]+)""", page.read_text(encoding="utf-8")):
        target = "".join(target)
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_readme_shows_the_main_commands():
    assert {"make demo", "make test", "make test-all"} <= {command.line for command in commands(ROOT / "README.md")}


def test_the_code_and_the_commands_of_a_page_are_found(tmp_path):
    page = tmp_path / "page.md"
    python, said = "```python\n# here.py\nimport mha_core\nprint(1)\n```\n", "```text\n1\n```\n"
    not_run = "<!-- not run: no such thing -->\n```python\nx\n```\n"
    console = "```console\n$ mha one  # a comment\nshown\n$ make two\n```\n"
    page.write_text("\n".join(["# Page\n", python, said, not_run, console]))
    assert blocks(page)[:2] == [
        Block("python", "# here.py\nimport mha_core\nprint(1)\n", 4, "1\n"),
        Block("python", "x\n", 15, not_run="no such thing"),
    ]
    assert [block.stands_alone for block in blocks(page)] == [True, False, False]
    write_files(page, tmp_path)
    assert (tmp_path / "here.py").read_text() == blocks(page)[0].code
    assert [(command.line, command.shown) for command in commands(page)] == [("mha one", "shown\n"), ("make two", None)]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [("1\n2\n", "1  \n2\n\n", True), ("1 ... 4\n", "1 2 3 4\n", True), ("1\n", "2\n", False), ("1\n2\n", "1\n", False)],
)
def test_what_is_shown_is_what_was_printed(shown, printed, same):
    assert is_as_shown(shown, printed) is same
