"""The documentation is complete: it has every public name, every promise with its tests, and every page in its contents."""

import fnmatch
import re
from xml.etree import ElementTree

import file_tree
import pytest
import reference_page
import yaml
from pages import PAGES, blocks
from project import ROOT
from promised import SUITE, held_by, listing

import mha_core
import mha_core.plugin
import mha_numpy
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


def test_the_reference_has_the_signatures_and_first_sentences_of_today():
    text = reference_page.PAGE.read_text(encoding="utf-8")
    assert text == reference_page.written(text), "run `python tests/support/reference_page.py`, which writes the lists of names"


def test_a_code_host_shows_names_in_the_reference_and_no_directives():
    shown = re.sub(r"<!--.*?-->", "", (DOCS / "reference.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    listed = set(re.findall(r"^- `(\w+)", shown, flags=re.MULTILINE))
    assert "::" not in shown and listed >= {*mha_core.__all__, *mha_core.plugin.__all__, *mha_text.__all__}
    assert "- `causal()`: Key position <= query position (Vaswani et al. 2017, section 3.2.3).\n" in shown


def test_the_picture_of_dispatch_shows_the_kernels_of_its_page_and_what_explain_prints():
    """The page's code runs in the tests, and its output is compared."""
    picture = ElementTree.parse(DOCS / "dispatch.svg").getroot()
    texts = ["".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    printed = next(block.shown for block in blocks(DOCS / "kernel.md") if block.shown and "not dense: " in block.shown)
    first = printed.split("attention: tiles")[1]
    assert texts[-2].removeprefix("attention: tiles") == first.splitlines()[0] and texts[-1] in first
    tiles = next(each for each in mha_numpy.mha_kernels() if (each.op, each.name) == ("attention", "tiles"))
    dense = next(block.code for block in blocks(DOCS / "kernel.md") if block.file == "causal_kernel.py")
    assert f"tilespriority {tiles.priority}" in texts and "densepriority 100" in texts and "priority=100," in dense


def test_the_jax_backend_on_the_page_is_the_installed_one():
    code = (ROOT / "backends" / "mha_jax" / "mha_jax" / "backend.py").read_text(encoding="utf-8")
    assert code in [block.code for block in blocks(DOCS / "backend.md")]


def test_the_tree_of_files_has_the_docstrings_of_all_modules():
    written = file_tree.PAGE.read_text(encoding="utf-8")
    assert written == file_tree.tree(), "run `python tests/support/file_tree.py`, which writes docs/tree.md"


def test_every_page_is_in_the_contents():
    contents = "".join(block.code for page in PAGES for block in blocks(page) if block.kind == "{toctree}")
    lines = [line for line in contents.splitlines() if line and not line.startswith(":")]
    patterns = [line.rpartition("<")[2].rstrip(">") + ".md" for line in lines]  # a line may be "title <page>", or "folder/*"
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)}
    found = [set(fnmatch.filter(pages, pattern)) for pattern in patterns]
    assert all(found) and set.union(*found) == pages - {"index.md"}


def test_no_two_pages_have_the_same_title():
    titles = {page: page.read_text(encoding="utf-8").partition("\n")[0] for page in DOCS.rglob("*.md")}
    assert all(title.startswith("# ") for title in titles.values())
    assert len(set(titles.values())) == len(titles) > 40, sorted(titles.values())


def test_the_workflow_publishes_what_make_docs_builds():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text(encoding="utf-8"))
    steps = {job: workflow["jobs"][job]["steps"] for job in ("build", "publish")}
    ran = [step["run"] for step in steps["build"] if "run" in step]
    (uploaded,) = (step["with"]["path"] for step in steps["build"] if "upload-pages" in step.get("uses", ""))
    recipe = re.search(r"^docs:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert ran == ["make docs"] and recipe.endswith(f" docs {uploaded}\n")
    used = [step["uses"] for each in steps.values() for step in each if "uses" in step]
    assert len(used) == 4 and all(re.fullmatch(r"actions/[\w-]+@v\d+", each) for each in used)


def test_the_citation_names_this_version_and_licence():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^(\w+): (\S+)$", text, flags=re.MULTILINE))
    assert stated["version"] == mha_core.__version__
    assert f'license = "{stated["license"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
