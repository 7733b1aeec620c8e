"""The page of ``mha attend`` in a real browser, without a network: what it shows is what the encoder computed."""

import re
from itertools import pairwise

import numpy as np
import pytest
from browser import IMAGE_FROM_ELSEWHERE, NARROW, WIDE, complaint, hover, look, needs_browser, opened_afresh, requests, until
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from mha_text.cli.attend import page
from mha_text.cli.attend.maps import AttentionMaps, Choice

pytestmark = needs_browser

TOKENS = ("[CLS]", "<b>bold</b>", "</script><script>document.title='taken'</script>", "a & b", "[SEP]")
WEIGHTS = np.random.default_rng(3).exponential(size=(2, 3, 5, 5)) ** 2
WEIGHTS /= WEIGHTS.sum(axis=-1, keepdims=True)


def maps_of(tokens=TOKENS, weights=WEIGHTS):
    """Attention maps of these tokens; by default of equal weights, if the tokens are others."""
    if tokens is not TOKENS:
        weights = np.full((1, 1, len(tokens), len(tokens)), 1 / len(tokens), dtype=np.float32)
    return AttentionMaps(
        "text", tuple(tokens), tuple(token in ("[CLS]", "[SEP]") for token in tokens), weights, "tiny", "numpy"
    )


def write(path, maps, head=None, token=None):
    """Write a page, and return its address."""
    with path.open("wb") as file:
        page.write(maps, Choice(None, head, token), file)
    return path.as_uri()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of the page that most tests open."""
    return write(tmp_path_factory.mktemp("attend") / "page.html", maps_of(), "mean")


@pytest.fixture
def opened(browser, address):
    return visit(browser, address)


@pytest.fixture
def show(browser, tmp_path):
    """A function that opens the page of maps, in a window of a size."""

    def of(maps, size=WIDE):
        visit(browser, write(tmp_path / "page.html", maps))
        look(browser, size)
        return browser

    return of


def visit(browser, address):
    """Open a page, and return the browser once the page is drawn."""
    opened_afresh(browser, address)
    until(browser, lambda: every(browser, "#heat .hm"))
    return browser


def every(browser, selector):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def token(browser, side, at):
    return every(browser, f"#{side} button")[at]


def thumbnail(browser, layer, head):
    (button,) = every(browser, f'#glance [data-layer="{layer}"][data-head="{head}"]')
    return button


def boxes(browser, selector):
    """The places of elements in the window."""
    script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.getBoundingClientRect().toJSON())"
    return browser.execute_script(script, selector)


def font_size(browser, selector):
    return browser.execute_script(
        "return parseFloat(getComputedStyle(document.querySelector(arguments[0])).fontSize)", selector
    )


def chosen(browser):
    """Layer and head as the menus show them, which must agree with the one small map that is pressed."""
    options = (Select(browser.find_element(By.ID, name)).first_selected_option for name in ("layer", "head"))
    menus = [option.get_attribute("value") for option in options]
    (pressed,) = every(browser, '#glance [aria-pressed="true"]')
    assert menus == [pressed.get_attribute("data-layer"), pressed.get_attribute("data-head")]
    return tuple(menus)


def heat(browser):
    """The numbers of the heat map."""
    return np.asarray(browser.execute_script("return document.getElementById('heat').data[0].z"))


def lines(browser):
    """The opacity of each line, by its (from, to)."""
    script = """return [...document.querySelectorAll('#links path')]
        .map((path) => [path.getAttribute('d'), Number(path.getAttribute('stroke-opacity'))])"""
    opacities = {}
    for path, opacity in browser.execute_script(script):
        numbers = [float(word) for word in path.replace(",", " ").split() if word not in "MC"]
        opacities[int(numbers[1]), int(numbers[-1])] = opacity
    return opacities


def said(browser):
    return browser.find_element(By.ID, "said").text


def strongest(weights):
    return ", ".join(f"{TOKENS[at]} {weights[at]:.3f}" for at in np.argsort(-weights)[:3])


def test_it_opens_on_the_mean_of_the_last_layer(opened):
    assert chosen(opened) == ("1", "mean")
    np.testing.assert_allclose(heat(opened), WEIGHTS[1].mean(axis=0), atol=1e-5)
    assert set(lines(opened)) == {tuple(pair) for pair in np.argwhere(WEIGHTS[1].mean(axis=0) >= 0.05).tolist()}


@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_in_a_long_text_what_is_said_stays_in_sight(show, size):
    browser = show(maps_of([f"token{at}" for at in range(200)]), size)
    last = token(browser, "from", 150)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", last)
    last.click()
    (box,) = boxes(browser, "#said")
    assert said(browser).startswith("token150 → ") and 0 <= box["top"] < box["bottom"] < size[1] / 3


def test_on_a_phone_all_labels_the_scale_and_all_heads_can_be_reached(show):
    browser = show(maps_of([f"token{at}" for at in range(40)]), NARROW)
    until(browser, lambda: len(every(browser, "#heat .xtick")) == 40)
    scroll = "const at = document.querySelector('#heat').parentElement; at.scrollLeft = arguments[0]; return at.scrollWidth"
    width = browser.execute_script(scroll, 0)
    assert width > NARROW[0]  # it is scrolled sideways, not made illegible
    (scale,), (layer, *_) = boxes(browser, "#heat .colorbar"), boxes(browser, "#heat .heatmaplayer")
    assert 0 <= scale["left"] < scale["right"] <= NARROW[0] and scale["top"] > layer["top"]
    assert browser.execute_script(scroll, width) == width
    assert max(label["right"] for label in boxes(browser, "#heat .xtick text")) <= NARROW[0]
    show(maps_of(weights=np.full((2, 12, 5, 5), 0.2, dtype=np.float32)), NARROW)  # twelve heads fit
    until(browser, lambda: boxes(browser, "#glance")[0]["right"] <= NARROW[0])


def test_layer_and_head_are_chosen_by_the_menus_or_by_a_click_on_one_of_all_heads(opened):
    Select(opened.find_element(By.ID, "layer")).select_by_visible_text("0")
    Select(opened.find_element(By.ID, "head")).select_by_visible_text("2")
    assert chosen(opened) == ("0", "2")
    np.testing.assert_allclose(heat(opened), WEIGHTS[0, 2], atol=1e-5)
    assert opened.current_url.endswith("#layer=0&head=2")
    assert len(every(opened, "#glance canvas")) == 2 * (1 + 3)
    thumbnail(opened, 0, 1).click()
    assert chosen(opened) == ("0", "1")
    np.testing.assert_allclose(heat(opened), WEIGHTS[0, 1], atol=1e-5)


def test_a_small_map_is_darker_where_weights_are_larger(opened):
    script = """const canvas = arguments[0].firstElementChild;
        return [canvas.width, [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]]"""
    for layer, head in [(0, 0), (1, 2)]:
        side, pixels = opened.execute_script(script, thumbnail(opened, layer, head))
        assert side == len(TOKENS)
        brightness = np.reshape(pixels, (-1, 4))[:, :3].sum(axis=-1)[np.argsort(WEIGHTS[layer, head], axis=None)]
        assert (np.diff(brightness) <= 0).all() and brightness[0] > brightness[-1] + 200


def test_the_mouse_over_a_token_shows_what_it_attends_to(opened):
    thumbnail(opened, 1, 0).click()
    hover(opened, token(opened, "from", 3))
    assert said(opened) == f"a & b → {strongest(WEIGHTS[1, 0, 3])}"
    drawn = lines(opened)
    assert set(drawn) == {(3, to) for to in np.flatnonzero(WEIGHTS[1, 0, 3] > 0.001).tolist()}
    for (_, to), opacity in drawn.items():
        assert opacity == pytest.approx(WEIGHTS[1, 0, 3, to] ** 0.5, abs=1e-3)
    script = "return [...document.querySelectorAll('#to button')].map((each) => each.style.getPropertyValue('--weight'))"
    shades = [float(shade) for shade in opened.execute_script(script)]
    np.testing.assert_allclose(shades, WEIGHTS[1, 0, 3] ** 0.5, atol=1e-3)
    hover(opened, token(opened, "to", 0))  # on the right, it shows what attends to the token
    assert said(opened) == f"[CLS] ← {strongest(WEIGHTS[1, 0, :, 0])}"
    assert {to for _, to in lines(opened)} == {0}


def test_a_click_keeps_a_token_and_another_lets_it_go(opened):
    everything = lines(opened)
    for kept in ({1}, {0, 1, 2, 3, 4}):
        token(opened, "from", 1).click()
        hover(opened, opened.find_element(By.TAG_NAME, "h1"))
        opened.execute_script("document.activeElement.blur()")
        until(opened, lambda kept=kept: {start for start, _ in lines(opened)} == kept)
    assert lines(opened) == everything


def test_nothing_moves_under_the_mouse(opened):
    """The line about this token is long, and must not push the tokens down."""
    before = [box["top"] for box in boxes(opened, "#lines button, #heat")]
    hover(opened, token(opened, "from", 2))
    until(opened, lambda: said(opened))
    assert [box["top"] for box in boxes(opened, "#lines button, #heat")] == before


def focused(browser):
    """The side and the index of the token that has the keyboard's focus, or None."""
    return browser.execute_script(
        """const at = (side) => [...document.querySelectorAll(`#${side} button`)].indexOf(document.activeElement);
        return at("from") >= 0 ? ["from", at("from")] : at("to") >= 0 ? ["to", at("to")] : null;"""
    )


def press(browser, *keys):
    browser.switch_to.active_element.send_keys(*keys)


def test_tokens_can_be_chosen_with_the_keyboard(opened):
    opened.find_element(By.ID, "head").send_keys(Keys.TAB, Keys.TAB)
    assert focused(opened) == ["from", 0] and {start for start, _ in lines(opened)} == {0}
    for key, side, at in [
        (Keys.UP, "from", 0),
        (Keys.DOWN, "from", 1),
        (Keys.RIGHT, "to", 1),
        (Keys.RIGHT, "to", 1),
        (Keys.END, "to", 4),
        (Keys.DOWN, "to", 4),
        (Keys.UP, "to", 3),
        (Keys.LEFT, "from", 3),
        (Keys.HOME, "from", 0),
    ]:
        press(opened, key)
        assert focused(opened) == [side, at]
        assert {pair[side == "to"] for pair in lines(opened)} == {at}
    press(opened, Keys.DOWN, Keys.ENTER)
    assert opened.current_url.endswith("&from=1")


def test_the_tab_key_stops_once_at_the_tokens(opened):
    opened.find_element(By.ID, "head").send_keys(Keys.TAB, Keys.TAB)
    press(opened, Keys.DOWN)
    press(opened, Keys.TAB)
    assert focused(opened) is None
    press(opened, Keys.SHIFT, Keys.TAB)
    opened.find_element(By.ID, "without-special").send_keys(Keys.NULL, Keys.SPACE, Keys.TAB)
    assert focused(opened) == ["from", 1]  # the first that is shown
    press(opened, Keys.UP)
    assert focused(opened) == ["from", 1]


def test_the_mouse_over_the_heat_map_shows_the_weight(opened):
    hover(opened, every(opened, "#heat .nsewdrag")[0])  # the middle cell
    label = until(opened, lambda: every(opened, ".hoverlayer .hovertext"))[0]
    assert label.get_attribute("textContent") == f"{TOKENS[2]} → {TOKENS[2]}: {WEIGHTS[1].mean(axis=0)[2, 2]:.3f}"
    assert {start for start, _ in lines(opened)} == {2}


def test_the_scale_is_legible_with_many_tokens(show):
    assert font_size(show(maps_of([f"t{at}" for at in range(120)])), "#heat .colorbar .cbaxis text") >= 11


def test_special_tokens_can_be_left_out(opened):
    opened.find_element(By.ID, "without-special").click()
    np.testing.assert_allclose(heat(opened), WEIGHTS[1].mean(axis=0)[1:4, 1:4], atol=1e-5)
    assert {at for pair in lines(opened) for at in pair} <= {1, 2, 3}
    assert [token(opened, "from", at).is_displayed() for at in range(5)] == [False, True, True, True, False]


def test_an_address_opens_on_its_head_and_token_and_a_wrong_one_on_the_default(browser, address):
    assert chosen(visit(browser, f"{address}#layer=0&head=2")) == ("0", "2")
    token(browser, "to", 3).click()
    kept = browser.current_url
    assert kept.endswith("#layer=0&head=2&to=3")
    visit(browser, kept)
    assert chosen(browser) == ("0", "2") and {to for _, to in lines(browser)} == {3}
    visit(browser, f"{address}#layer=7&head=x&from=-1")
    assert chosen(browser) == ("1", "mean") and len({start for start, _ in lines(browser)}) == 5


def test_a_page_opens_on_the_token_that_was_asked_for_until_it_is_let_go(browser, tmp_path):
    address = write(tmp_path / "page.html", maps_of(), "mean", token=3)
    visit(browser, address)
    assert {start for start, _ in lines(browser)} == {3} and said(browser).startswith("a & b → ")
    token(browser, "from", 3).click()
    hover(browser, browser.find_element(By.TAG_NAME, "h1"))
    browser.execute_script("document.activeElement.blur()")
    until(browser, lambda: len({start for start, _ in lines(browser)}) == 5)
    visit(browser, browser.current_url)
    assert len({start for start, _ in lines(browser)}) == 5
    visit(browser, f"{address}#to=1")
    assert {to for _, to in lines(browser)} == {1}


def test_markup_in_a_token_is_shown_as_text(opened):
    assert opened.title == "Attention of tiny"
    assert [token(opened, "from", at).text for at in range(5)] == list(TOKENS)
    names = [tick.text for tick in every(opened, "#heat .ytick")]
    assert sorted(names) == sorted(name if len(name) < 19 else f"{name[:17]}…" for name in TOKENS)


def test_no_request_leaves_the_machine_and_the_browser_logs_nothing(opened):
    hover(opened, token(opened, "from", 1))
    asked = requests(opened)
    assert asked and all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked
    assert opened.get_log("browser") == []
    # so this can fail: the page's own policy blocks what a script requests, and the browser logs it
    assert "Content Security Policy" in complaint(opened, IMAGE_FROM_ELSEWHERE)


def test_on_a_phone_the_views_stand_one_below_the_other_and_nothing_is_cut(opened):
    look(opened, NARROW)
    views = ".views figure, #heat .main-svg"
    until(opened, lambda: boxes(opened, views)[0]["bottom"] <= boxes(opened, views)[1]["top"])
    until(opened, lambda: all(box["right"] <= NARROW[0] for box in boxes(opened, views)))
    assert opened.execute_script("return document.documentElement.scrollWidth") <= NARROW[0]
    until(opened, lambda: boxes(opened, "#heat .heatmaplayer")[0]["width"] > NARROW[0] / 3)


@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_labels_of_the_heat_map_do_not_overlap(show, size):
    text = "The swift that nested under our roof sleeps on the wing. Some birds never land to rest, and eat and drink on high."
    words = ["[CLS]", *text.split(), "unpronounceableness", "[SEP]"]
    assert len(words) > 23
    browser = show(maps_of(words), size)
    until(browser, lambda: (boxes(browser, "#heat .main-svg")[0]["width"] < NARROW[0]) == (size == NARROW))
    tops = sorted((box["top"], box["bottom"]) for box in boxes(browser, "#heat .ytick text"))
    assert len(tops) == len(words)
    assert all(upper[1] <= lower[0] + 0.5 for upper, lower in pairwise(tops))
    # at 60 degrees a label has 0.87 of a row
    assert 6 <= font_size(browser, "#heat .xtick text") <= 0.8 * (tops[1][0] - tops[0][0])


def test_dark_pages_have_light_words(opened):
    def brightness():
        script = "return getComputedStyle(document.querySelector('#heat .ytick text')).fill"
        return sum(int(part) for part in re.findall(r"\d+", opened.execute_script(script))[:3])

    assert brightness() < 200
    look(opened, WIDE, "dark")
    until(opened, lambda: brightness() > 500)
