"""The report in a real browser, without a network: it draws its figures, responds to the mouse, and sends no requests."""

import re

import pytest
from browser import IMAGE_FROM_ELSEWHERE, NARROW, WIDE, complaint, hover, look, needs_browser, opened_afresh, requests, until
from sample_history import LAST, STEP, UNMEASURED
from selenium.webdriver.common.by import By

from mha_conformance.history import page

WHEN = f"2026-01-{STEP + 1:02}"

pytestmark = needs_browser


@pytest.fixture(scope="module")
def report(history, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    page.write(history, path)
    return path


@pytest.fixture
def opened(browser, report):
    return opened_afresh(browser, report.as_uri())


def figure(browser, case):
    """The figure of a case, drawn, and scrolled to the middle of the window."""
    element = browser.find_element(By.CSS_SELECTOR, f"#ci-2core--{case} .figure")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    until(browser, lambda: lines(element))
    return element


def lines(element):
    """The colour of each line, all read at the same moment; a line with a gap consists of two paths."""
    script = """return [...arguments[0].querySelectorAll('.scatterlayer .trace')]
        .map((trace) => getComputedStyle(trace.querySelector('.js-line')).stroke)"""
    return element.parent.execute_script(script, element)


def points(element, line):
    """The points of one line, in the order of commits."""
    trace = element.find_elements(By.CSS_SELECTOR, ".scatterlayer .trace")[line]
    return trace.find_elements(By.CSS_SELECTOR, ".point")


def hovered(browser, element):
    """The text that appears when the mouse is over this element."""
    hover(browser, element)
    labels = until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".hoverlayer .hovertext"))
    return " ".join(" ".join(label.get_attribute("textContent") for label in labels).split())


def test_a_line_has_a_point_for_each_value(opened):
    long = figure(opened, "long")
    commits = LAST + 1 - len(UNMEASURED)
    assert len(points(long, 0)) == commits - 1  # numpy, which has no value for one commit
    assert len(points(long, 1)) == commits - 1  # torch, which failed once
    assert len(points(long, 2)) == 3  # late


def test_the_mouse_over_a_point_shows_its_commit_and_no_markup_in_a_subject_changes_the_page(opened):
    short = figure(opened, "short")
    said = hovered(opened, points(short, 1)[STEP - 2])  # torch; two commits before were not measured
    assert "torch" in said and " ms" in said and WHEN in said
    assert "slower: </script><script>document.title" in said and "<b>bold</b> & 'quotes'" in said
    assert "EPYC <1>, family 25 model 1" in said
    assert opened.title == "sample: performance over time"
    assert opened.execute_script("return document.scripts.length") == 3


def test_a_name_in_the_legend_hides_its_lines_in_all_plots_of_the_figure(opened):
    long = figure(opened, "long")
    before = lines(long)
    names = [name.text for name in long.find_elements(By.CSS_SELECTOR, ".legendtext")]
    assert names == ["numpy", "torch", "late"]
    torch = before[1]
    assert before.count(torch) == 3
    long.find_elements(By.CSS_SELECTOR, ".legendtoggle")[1].click()
    until(opened, lambda: len(lines(long)) == 6)
    assert torch not in lines(long)
    long.find_elements(By.CSS_SELECTOR, ".legendtoggle")[1].click()
    until(opened, lambda: len(lines(long)) == 9)


def test_no_request_leaves_the_machine_and_the_browser_logs_nothing(opened):
    for case in ("short", "long"):
        hovered(opened, points(figure(opened, case), 0)[0])
    asked = requests(opened)
    assert asked and all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked
    assert opened.get_log("browser") == []


def test_a_request_would_be_logged_and_blocked(opened):
    """So the test above can fail: the browser logs a request for an image, and the page's own policy blocks it."""
    assert "Content Security Policy" in complaint(opened, IMAGE_FROM_ELSEWHERE)


def worst(browser):
    return [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#ci-2core--since tr")]


def test_the_worst_since_a_date_are_those_of_the_date_that_the_reader_picks(opened):
    """Nothing rose but torch in one case, and that before the second date."""
    (row,) = worst(opened)
    assert row.split() == ["short", "torch", "time,", "one", "thread", "1.40"]
    dates = opened.find_element(By.CSS_SELECTOR, "input[type=date]")
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    opened.execute_script(script, dates, "2026-01-12")
    assert worst(opened) == []
    assert opened.find_element(By.ID, "ci-2core--since").text == "No line rose by more than its tolerance."


def test_links_of_the_table_lead_to_the_plots(opened):
    link = opened.find_element(By.CSS_SELECTOR, ".newest tbody th a")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", link)
    link.click()
    until(opened, lambda: lines(opened.find_element(By.CSS_SELECTOR, "article:target .figure")))
    assert opened.current_url.endswith("#ci-2core--short")


def test_on_a_phone_plots_stand_one_below_another_and_the_page_is_no_wider_than_the_window(opened):
    wide = figure(opened, "long").size["height"]
    look(opened, NARROW)
    until(opened, lambda: figure(opened, "long").size["height"] > 1.5 * wide)
    until(opened, lambda: opened.execute_script("return document.documentElement.scrollWidth") <= NARROW[0])
    assert len(lines(figure(opened, "long"))) == 9
    tops = """return [...arguments[0].querySelectorAll('.annotation')].map((title) => title.getBoundingClientRect().top)"""
    time, cost, memory = opened.execute_script(tops, figure(opened, "long"))
    assert time + 100 < cost < memory - 100


def test_dark_pages_have_light_words_in_plots(opened):
    def brightness():
        script = "return getComputedStyle(arguments[0].querySelector('.legendtext')).fill"
        return sum(int(part) for part in re.findall(r"\d+", opened.execute_script(script, figure(opened, "short")))[:3])

    assert brightness() < 200
    look(opened, WIDE, "dark")
    until(opened, lambda: brightness() > 500)
