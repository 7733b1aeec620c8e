"""The documentation is complete: it has every public name, every promise with its tests, and every page in its contents."""

import re

import file_tree
import pytest
from pages import PAGES, blocks
from project import ROOT
from promised import SUITE, held_by, listing

import mha_core
import mha_core.plugin
import mha_numpy.shared
import mha_text
from mha_conformance.report.promises import PROMISES

DOCS = ROOT / "docs"


def sections(page):
    """The text below each second-level heading, by heading."""
    parts = re.split(r"^## (.+)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_has_its_section_with_all_its_tests(promise):
    (text,) = (text for heading, text in sections("promises.md").items() if heading.startswith(f"{promise}. "))
    assert listing(promise), "no test checks this promise"
    assert text.endswith(f"\n\n{listing(promise)}\n" if promise < max(PROMISES) else f"\n\n{listing(promise)}"), listing(
        promise
    )


def test_the_page_of_promises_has_no_others():
    assert [int(heading.partition(".")[0]) for heading in sections("promises.md")] == list(PROMISES)


def test_the_promise_mark_of_a_test_replaces_that_of_its_module():
    inputs = next(path for path in SUITE if path.name == "test_inputs.py")
    of = {promise: {name for path, name in held_by(promise) if path == inputs} for promise in PROMISES}
    assert len(of[12]) > len(of[0]) > 0 and not of[12] & of[0]


@pytest.mark.parametrize("module", [mha_core, mha_core.plugin, mha_numpy.shared, mha_text], ids=lambda module: module.__name__)
def test_the_reference_has_every_public_name(module):
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    parts = re.split(r"currentmodule:: (\S+)", text)
    names = re.findall(
        r"^\.\. (?:auto|py:)\w+:: (\w+)$", dict(zip(parts[1::2], parts[2::2], strict=True))[module.__name__], re.M
    )
    assert sorted(names) == sorted(module.__all__)


def test_the_jax_backend_on_the_page_is_the_installed_one():
    code = (ROOT / "backends" / "mha_jax" / "mha_jax" / "backend.py").read_text(encoding="utf-8")
    assert code in [block.code for block in blocks(DOCS / "backend.md")]


def test_the_tree_of_files_has_the_docstrings_of_all_modules():
    written = file_tree.PAGE.read_text(encoding="utf-8")
    assert written == file_tree.tree(), "run `python tests/support/file_tree.py`, which writes docs/tree.md"


def test_every_page_is_in_the_contents():
    contents = "".join(block.code for page in PAGES for block in blocks(page) if block.kind == "{toctree}")
    lines = [line for line in contents.splitlines() if line and not line.startswith(":")]
    listed = {line.rpartition("<")[2].rstrip(">") + ".md" for line in lines}  # a line may be "title <page>"
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)}
    assert listed == pages - {"index.md"}


def test_the_citation_names_this_version_and_licence():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^(\w+): (\S+)$", text, flags=re.MULTILINE))
    assert stated["version"] == mha_core.__version__
    assert f'license = "{stated["license"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
