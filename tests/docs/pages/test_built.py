"""The documentation as Sphinx builds it: without warnings, and without requests to other hosts."""

import re
import sys
from urllib.parse import unquote

import pytest
from browser import NARROW, WIDE, look, needs_browser, opened_afresh, until
from processes import printed
from project import ROOT

# what makes a browser fetch something, unlike links that a reader may follow
FETCHED = re.compile(
    r"""(?:<(?:script|img|iframe|source)[^>]*\ssrc=|<link[^>]*\shref=|url\(|@import\s)["']?\s*((?:https?:)?//[^"')\s]+)"""
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The pages that `make docs` builds, without the report, which tests/conformance/history/test_page.py tests."""
    folder = tmp_path_factory.mktemp("docs")
    options = ["--nitpicky", "--fail-on-warning", "--keep-going", "--quiet", "-D", "html_extra_path="]
    command = [sys.executable, "-m", "sphinx", *options, "-d", folder / "doctrees", ROOT / "docs", folder / "html"]
    printed(command)
    return folder / "html"


def test_no_page_fetches_anything(built):
    files = [path for path in built.rglob("*") if path.suffix in (".html", ".css")]
    fetched = {path.name: urls for path in files if (urls := FETCHED.findall(path.read_text(encoding="utf-8")))}
    assert len(files) > 20 and not fetched


@pytest.mark.parametrize(
    "page",
    ["<script async src='https://a.b/c.js'>", '<link rel="x" href="//a.b/c.css" />', "p { background: url(http://a.b/c.png) }"],
)
def test_markup_that_fetches_something_is_found(page):
    assert len(FETCHED.findall(page)) == 1


def test_the_folder_can_be_served_from_any_address(built):
    """What a page names is found beside it, wherever the folder lies: on a disk, or below any path of a host."""
    pages, lost = list(built.rglob("*.html")), set()
    for page in pages:
        named = re.findall(r'<[^>]+?\s(?:href|src|srcset)="([^"#?]+)', page.read_text(encoding="utf-8"))
        addresses = {unquote(each) for each in named if not re.match(r"(https?|data|mailto):", each)}
        lost |= {(page.name, each) for each in addresses if each.startswith("/") or not (page.parent / each).exists()}
    assert len(pages) > 40 and lost <= {("performance.html", "report.html")}  # which `make docs` adds


def test_every_picture_is_there_for_light_and_dark_pages(built):
    used = set()
    for page in built.rglob("*.html"):
        pictures = re.findall(r'<(?:img|source)[^>]*\ssrc(?:set)?="([^"]+)"', page.read_text(encoding="utf-8"))
        assert all((page.parent / each).exists() for each in pictures), page.name
        used |= {each.rpartition("/")[2] for each in pictures}
    assert {"attend.png", "attend-dark.png", "report.png", "report-dark.png", "idea.svg", "dispatch.svg"} <= used
    for name in ("idea.svg", "amd-epyc-26-2.svg", "dispatch.svg"):
        assert "prefers-color-scheme: dark" in (built / "_images" / name).read_text(encoding="utf-8")


def excerpts(browser, results):
    """Return the excerpt that each result shows, or "" where it shows none."""
    script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.querySelector('p.context')?.innerText)"
    return [text or "" for text in browser.execute_script(script, results)]


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("word", ["softcap", "KeyValueCache", "oneDNN"])
def test_a_search_from_disk_shows_excerpts(built, browser, word):
    opened_afresh(browser, f"{(built / 'search.html').as_uri()}?q={word}")
    pages = "#search-results li:not(.kind-object)"  # an entry for one name, such as a class, has no excerpt
    until(browser, lambda: len(excerpts(browser, pages)) >= 3 and all(excerpts(browser, pages)))
    assert any(word.lower() in each.lower() for each in excerpts(browser, pages))
    assert [entry["message"] for entry in browser.get_log("browser")] == []


FAULTS = """
const faults = [], scrolls = ["auto", "scroll"];
const within = (each) => each.scrollWidth <= each.clientWidth;
for (const each of document.querySelectorAll("html, .content"))
  if (!within(each)) faults.push(`the page is ${each.scrollWidth} wide`);
for (const each of document.querySelectorAll("article pre"))
  if (!within(each) && !(each.querySelector(".row") && scrolls.includes(getComputedStyle(each).overflowX)))
    faults.push(`code is ${each.scrollWidth} wide in ${each.clientWidth}: ${each.innerText.slice(0, 60)}`);
for (const each of document.querySelectorAll("article .table-wrapper"))
  if (!scrolls.includes(getComputedStyle(each).overflowX)) faults.push("a table does not scroll by itself");
for (const title of document.querySelectorAll("article :is(h1, h2, h3, h4)")) {
  const texts = document.createTreeWalker(title, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (texts.nextNode())
    for (const word of texts.currentNode.data.matchAll(/[^\\s/-]+/g)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].filter((each) => each.width).map((each) => Math.round(each.top)));
      if (lines.size > 1) faults.push(`a title breaks within ${word[0]}`);
    }
}
const contents = document.querySelector(".toc-drawer:not(.no-toc)");
const hidden = contents && contents.getBoundingClientRect().right > innerWidth;
if (innerWidth >= 1280 && hidden) faults.push("the contents are hidden");
return faults;
"""
"""Return what does not fit into the window: anything but rows of tables, which scroll inside their block, is a fault."""
PHONE = (390, 844)


def faults(browser, page):
    """Return the faults of a page in a wide window and on a phone, by width."""
    opened_afresh(browser, page.as_uri())
    found = {}
    for size in (WIDE, PHONE):
        look(browser, size)
        found[size[0]] = browser.execute_script(FAULTS)
    return {width: each for width, each in found.items() if each}


@pytest.mark.browser
@needs_browser
def test_every_page_fits_a_wide_window_and_a_phone(built, browser):
    pages = [path for path in built.rglob("*.html") if "_modules" not in path.parts]
    found = {page.relative_to(built).as_posix(): faults(browser, page) for page in pages}
    assert len(pages) > 40 and {page: each for page, each in found.items() if each} == {}


@pytest.mark.browser
@needs_browser
def test_what_does_not_fit_is_found(browser, tmp_path):
    style = "pre { overflow: auto } h1 { overflow-wrap: anywhere } .toc-drawer { position: fixed; right: -9px }"
    parts = [
        f"<style>{style}</style><article><h1>{'scaled' * 40}</h1>",
        f"<pre>{'x' * 500}</pre><pre><span class='row'>{'─' * 500}</span></pre>",
        "<div class='table-wrapper' style='width: 400px'>table</div></article><div class='toc-drawer'>contents</div>",
    ]
    page = tmp_path / "page.html"
    page.write_text("<!doctype html>" + "".join(parts), encoding="utf-8")
    found = faults(browser, page)
    assert [each.partition(" ")[0] for each in found[1280]] == ["code", "a", "a", "the"]
    assert "the contents are hidden" in found[1280] and "the page is" in found[390][0], found


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_the_page_of_peers_fits(built, browser, size):
    opened_afresh(browser, (built / "peers" / "amd-epyc-26-2.html").as_uri())
    look(browser, size)
    boxes = (
        "return [...document.querySelectorAll('article img, article table')].map((each) => each.getBoundingClientRect().right)"
    )
    picture, *ratios, times = browser.execute_script(boxes)
    assert len(ratios) == 3 and max(picture, *ratios) <= size[0] and (size == NARROW or times <= size[0])
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
