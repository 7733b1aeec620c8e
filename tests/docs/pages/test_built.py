"""The documentation as Sphinx builds it: without warnings, and without requests to other hosts."""

import re
import sys

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


def test_every_picture_is_there_for_light_and_dark_pages(built):
    used = set()
    for page in built.glob("*.html"):
        pictures = re.findall(r'<(?:img|source)[^>]*\ssrc(?:set)?="([^"]+)"', page.read_text(encoding="utf-8"))
        assert all((built / each).exists() for each in pictures), page.name
        used |= {each.rpartition("/")[2] for each in pictures}
    assert {"attend.png", "attend-dark.png", "report.png", "report-dark.png", "idea.svg", "peers.svg"} <= used
    for name in ("idea.svg", "peers.svg"):
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


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_the_page_of_peers_fits(built, browser, size):
    opened_afresh(browser, (built / "peers.html").as_uri())
    look(browser, size)
    boxes = (
        "return [...document.querySelectorAll('article img, article table')].map((each) => each.getBoundingClientRect().right)"
    )
    picture, ratios, times = browser.execute_script(boxes)
    assert max(picture, ratios) <= size[0] and (size == NARROW or times <= size[0])
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
