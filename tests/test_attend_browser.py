"""The page of ``mha attend`` in a real browser, without a network: what it shows is what the encoder computed."""

import re
from itertools import pairwise

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from browser import IMAGE_FROM_ELSEWHERE, NARROW, WIDE, complaint, hover, look, needs_browser, opened_afresh, requests, until
from conftest import mha
from mha_core.cli.attend import page
from mha_core.cli.attend.maps import AttentionMaps, Choice
from test_cli import ok

pytestmark = [pytest.mark.browser, needs_browser]

TOKENS = ("[CLS]", "<b>bold</b>", "</script><script>document.title='taken'</script>", "a & b", "[SEP]")
WEIGHTS = np.random.default_rng(3).exponential(size=(2, 3, 5, 5)) ** 2
WEIGHTS /= WEIGHTS.sum(axis=-1, keepdims=True)
SENTENCE = "The swift that nested under our roof sleeps on the wing."


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("attend") / "page.html"
    special = (True, False, False, False, True)
    with path.open("wb") as file:
        page.write(AttentionMaps("five tokens", TOKENS, special, WEIGHTS, "tiny", "numpy"), Choice(None, "mean"), file)
    return path


@pytest.fixture
def opened(browser, written):
    return ready(opened_afresh(browser, written.as_uri()))


def ready(browser):
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#heat .hm"))
    return browser


def token(browser, side, at):
    return browser.find_elements(By.CSS_SELECTOR, f"#{side} button")[at]


def thumbnail(browser, layer, head):
    return browser.find_element(By.CSS_SELECTOR, f'#glance [data-layer="{layer}"][data-head="{head}"]')


def chosen(browser):
    """Layer and head as the menus show them, which must agree with the one small map that is pressed."""
    menus = [
        Select(browser.find_element(By.ID, name)).first_selected_option.get_attribute("value") for name in ("layer", "head")
    ]
    (pressed,) = browser.find_elements(By.CSS_SELECTOR, '#glance [aria-pressed="true"]')
    assert menus == [pressed.get_attribute("data-layer"), pressed.get_attribute("data-head")]
    return tuple(menus)


def heat(browser):
    """The numbers of the heat map."""
    return np.asarray(browser.execute_script("return document.getElementById('heat').data[0].z"))


def lines(browser):
    """The opacity of each line, by its (from, to)."""
    script = """return [...document.querySelectorAll('#links path')]
        .map((path) => [path.getAttribute('d'), Number(path.getAttribute('stroke-opacity'))])"""
    found = {}
    for path, opacity in browser.execute_script(script):
        numbers = [float(word) for word in path.replace(",", " ").split() if word not in "MC"]
        found[int(numbers[1]), int(numbers[-1])] = opacity
    return found


def said(browser):
    return browser.find_element(By.ID, "said").text


def strongest(weights):
    return ", ".join(f"{TOKENS[at]} {weights[at]:.3f}" for at in np.argsort(-weights)[:3])


def test_it_opens_on_the_mean_of_the_last_layer(opened):
    assert chosen(opened) == ("1", "mean")
    np.testing.assert_allclose(heat(opened), WEIGHTS[1].mean(axis=0), atol=1e-5)
    drawn = lines(opened)
    assert set(drawn) == {tuple(pair) for pair in np.argwhere(WEIGHTS[1].mean(axis=0) >= 0.05).tolist()}


def test_by_default_it_opens_on_the_most_telling_head(browser, tmp_path):
    maps = AttentionMaps("five tokens", TOKENS, (True, False, False, False, True), WEIGHTS, "tiny", "numpy")
    with (tmp_path / "page.html").open("wb") as file:
        page.write(maps, Choice(None, None), file)
    ready(opened_afresh(browser, (tmp_path / "page.html").as_uri()))
    layer, head = Choice(None, None).one(maps)
    assert chosen(browser) == (str(layer), str(head))
    assert f"opens on layer {layer}, head {head}" in browser.find_element(By.TAG_NAME, "header").text


def many(folder, count):
    """A page of many tokens."""
    weights = np.full((1, 1, count, count), 1 / count, dtype=np.float32)
    maps = AttentionMaps("many", tuple(f"token{at}" for at in range(count)), (False,) * count, weights, "tiny", "numpy")
    with (folder / "page.html").open("wb") as file:
        page.write(maps, Choice(None, None), file)
    return (folder / "page.html").as_uri()


@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_in_a_long_text_what_is_said_stays_in_sight(browser, tmp_path, size):
    ready(opened_afresh(browser, many(tmp_path, 200)))
    look(browser, size)
    last = token(browser, "from", 150)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", last)
    last.click()
    box = browser.execute_script("return document.getElementById('said').getBoundingClientRect().toJSON()")
    assert said(browser).startswith("token150 → ") and 0 <= box["top"] < box["bottom"] < size[1] / 3


def test_on_a_phone_all_labels_the_scale_and_all_heads_can_be_reached(browser, tmp_path):
    ready(opened_afresh(browser, many(tmp_path, 40)))
    look(browser, NARROW)
    until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#heat .xtick")) == 40)
    box = "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()"
    place = (
        "const place = document.querySelector('#heat').parentElement; place.scrollLeft = arguments[0]; return place.scrollWidth"
    )
    width = browser.execute_script(place, 0)
    assert width > NARROW[0]  # it is scrolled sideways, not made illegible
    scale = browser.execute_script(box, "#heat .colorbar")
    assert (
        0 <= scale["left"] < scale["right"] <= NARROW[0]
        and scale["top"] > browser.execute_script(box, "#heat .heatmaplayer")["top"]
    )
    assert browser.execute_script(place, width) == width
    labels = browser.find_elements(By.CSS_SELECTOR, "#heat .xtick text")
    right = max(browser.execute_script("return arguments[0].getBoundingClientRect().right", label) for label in labels)
    assert right <= NARROW[0]


def test_on_a_phone_twelve_heads_fit(browser, tmp_path):
    weights = np.full((2, 12, 5, 5), 0.2, dtype=np.float32)
    maps = AttentionMaps("five tokens", TOKENS, (True, False, False, False, True), weights, "tiny", "numpy")
    with (tmp_path / "page.html").open("wb") as file:
        page.write(maps, Choice(None, None), file)
    ready(opened_afresh(browser, (tmp_path / "page.html").as_uri()))
    look(browser, NARROW)
    right = "return document.querySelector('#glance').getBoundingClientRect().right"
    until(browser, lambda: browser.execute_script(right) <= NARROW[0])


def test_layer_and_head_are_chosen_by_the_menus(opened):
    Select(opened.find_element(By.ID, "layer")).select_by_visible_text("0")
    Select(opened.find_element(By.ID, "head")).select_by_visible_text("2")
    assert chosen(opened) == ("0", "2")
    np.testing.assert_allclose(heat(opened), WEIGHTS[0, 2], atol=1e-5)
    assert opened.current_url.endswith("#layer=0&head=2")


def test_every_head_is_there_at_a_glance_and_a_click_chooses_it(opened):
    assert len(opened.find_elements(By.CSS_SELECTOR, "#glance canvas")) == 2 * (1 + 3)
    thumbnail(opened, 0, 1).click()
    assert chosen(opened) == ("0", "1")
    np.testing.assert_allclose(heat(opened), WEIGHTS[0, 1], atol=1e-5)


def test_a_small_map_is_darker_where_weights_are_larger(opened):
    script = """const canvas = arguments[0].firstElementChild;
        return [canvas.width, [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]]"""
    for layer, head in [(0, 0), (1, 2)]:
        side, found = opened.execute_script(script, thumbnail(opened, layer, head))
        assert side == len(TOKENS)
        brightness = np.reshape(found, (-1, 4))[:, :3].sum(axis=-1)
        weights = WEIGHTS[layer, head].ravel()
        order = np.argsort(weights)
        assert (np.diff(brightness[order]) <= 0).all() and brightness[order[0]] > brightness[order[-1]] + 200


def test_the_mouse_over_a_token_shows_what_it_attends_to(opened):
    thumbnail(opened, 1, 0).click()
    hover(opened, token(opened, "from", 3))
    assert said(opened) == f"a & b → {strongest(WEIGHTS[1, 0, 3])}"
    drawn = lines(opened)
    assert set(drawn) == {(3, to) for to in np.flatnonzero(WEIGHTS[1, 0, 3] > 0.001).tolist()}
    for (_, to), opacity in drawn.items():
        assert opacity == pytest.approx(WEIGHTS[1, 0, 3, to] ** 0.5, abs=1e-3)
    shades = opened.execute_script(
        "return [...document.querySelectorAll('#to button')].map((each) => Number(each.style.getPropertyValue('--weight')))"
    )
    np.testing.assert_allclose(shades, WEIGHTS[1, 0, 3] ** 0.5, atol=1e-3)


def test_the_mouse_over_a_token_on_the_right_shows_what_attends_to_it(opened):
    thumbnail(opened, 1, 0).click()
    hover(opened, token(opened, "to", 0))
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
    places = "return [...document.querySelectorAll('#lines button, #heat')].map((each) => each.getBoundingClientRect().top)"
    before = opened.execute_script(places)
    hover(opened, token(opened, "from", 2))
    until(opened, lambda: said(opened))
    assert opened.execute_script(places) == before


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
    for key, expected in [
        (Keys.UP, ["from", 0]),
        (Keys.DOWN, ["from", 1]),
        (Keys.RIGHT, ["to", 1]),
        (Keys.RIGHT, ["to", 1]),
        (Keys.END, ["to", 4]),
        (Keys.DOWN, ["to", 4]),
        (Keys.UP, ["to", 3]),
        (Keys.LEFT, ["from", 3]),
        (Keys.HOME, ["from", 0]),
    ]:
        press(opened, key)
        assert focused(opened) == expected
        side, at = expected
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
    cell = opened.find_element(By.CSS_SELECTOR, "#heat .nsewdrag")
    hover(opened, cell)  # the middle one
    label = until(opened, lambda: opened.find_elements(By.CSS_SELECTOR, ".hoverlayer .hovertext"))[0]
    assert label.get_attribute("textContent") == f"{TOKENS[2]} → {TOKENS[2]}: {WEIGHTS[1].mean(axis=0)[2, 2]:.3f}"
    assert {start for start, _ in lines(opened)} == {2}


def test_the_scale_is_legible_with_many_tokens(browser, tmp_path):
    count = 120
    weights = np.full((1, 1, count, count), 1 / count, dtype=np.float32)
    maps = AttentionMaps("many", tuple(f"t{at}" for at in range(count)), (False,) * count, weights, "tiny", "numpy")
    with (tmp_path / "page.html").open("wb") as file:
        page.write(maps, Choice(None, None), file)
    ready(opened_afresh(browser, (tmp_path / "page.html").as_uri()))
    size = "return parseFloat(getComputedStyle(document.querySelector('#heat .colorbar .cbaxis text')).fontSize)"
    assert browser.execute_script(size) >= 11


def test_special_tokens_can_be_left_out(opened):
    opened.find_element(By.ID, "without-special").click()
    np.testing.assert_allclose(heat(opened), WEIGHTS[1].mean(axis=0)[1:4, 1:4], atol=1e-5)
    assert {at for pair in lines(opened) for at in pair} <= {1, 2, 3}
    assert [token(opened, "from", at).is_displayed() for at in range(5)] == [False, True, True, True, False]


def test_an_address_opens_on_its_head_and_a_wrong_one_on_the_default(browser, written):
    ready(opened_afresh(browser, f"{written.as_uri()}#layer=0&head=2"))
    assert chosen(browser) == ("0", "2")
    ready(opened_afresh(browser, f"{written.as_uri()}#layer=7&head=x&from=-1"))
    assert chosen(browser) == ("1", "mean") and len({start for start, _ in lines(browser)}) == 5


def test_an_address_keeps_a_token(opened, browser):
    thumbnail(opened, 0, 2).click()
    token(opened, "to", 3).click()
    address = opened.current_url
    assert address.endswith("#layer=0&head=2&to=3")
    ready(opened_afresh(browser, address))
    assert chosen(browser) == ("0", "2") and {to for _, to in lines(browser)} == {3}


def test_markup_in_a_token_is_shown_as_text(opened):
    assert opened.title == "Attention of tiny"
    assert [token(opened, "from", at).text for at in range(5)] == list(TOKENS)
    names = [tick.text for tick in opened.find_elements(By.CSS_SELECTOR, "#heat .ytick")]
    assert sorted(names) == sorted(name if len(name) < 19 else f"{name[:17]}…" for name in TOKENS)


def test_no_request_leaves_the_machine_and_the_browser_logs_nothing(opened):
    hover(opened, token(opened, "from", 1))
    asked = requests(opened)
    assert asked and all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked
    assert opened.get_log("browser") == []


def test_a_request_would_be_logged_and_blocked(opened):
    """So the test above can fail: the page's own policy blocks what a script requests, and the browser logs it."""
    assert "Content Security Policy" in complaint(opened, IMAGE_FROM_ELSEWHERE)


def test_on_a_phone_the_views_stand_one_below_the_other_and_nothing_is_cut(opened):
    look(opened, NARROW)
    boxes = """return [...document.querySelectorAll('.views figure, #heat .main-svg')]
        .map((each) => each.getBoundingClientRect().toJSON())"""
    until(opened, lambda: opened.execute_script(boxes)[0]["bottom"] <= opened.execute_script(boxes)[1]["top"])
    until(opened, lambda: all(box["right"] <= NARROW[0] for box in opened.execute_script(boxes)))
    assert opened.execute_script("return document.documentElement.scrollWidth") <= NARROW[0]
    map_width = "return document.querySelector('#heat .heatmaplayer').getBoundingClientRect().width"
    until(opened, lambda: opened.execute_script(map_width) > NARROW[0] / 3)


@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_labels_of_the_heat_map_do_not_overlap(browser, tmp_path, size):
    words = (
        "[CLS]",
        *f"{SENTENCE} Some birds never land to rest, and eat and drink on high.".split(),
        "unpronounceableness",
        "[SEP]",
    )
    assert len(words) > 23
    weights = np.full((1, 1, len(words), len(words)), 1 / len(words), dtype=np.float32)
    maps = AttentionMaps("many", words, (False,) * len(words), weights, "tiny", "numpy")
    with (tmp_path / "page.html").open("wb") as file:
        page.write(maps, Choice(None, None), file)
    ready(opened_afresh(browser, (tmp_path / "page.html").as_uri()))
    look(browser, size)
    boxes = "return [...document.querySelectorAll('#heat .ytick text')].map((each) => each.getBoundingClientRect().toJSON())"
    width = "return document.querySelector('#heat .main-svg').getBoundingClientRect().width"
    until(browser, lambda: (browser.execute_script(width) < NARROW[0]) == (size == NARROW))
    tops = sorted((box["top"], box["bottom"]) for box in browser.execute_script(boxes))
    assert len(tops) == len(words)
    assert all(upper[1] <= lower[0] + 0.5 for upper, lower in pairwise(tops))
    font = "return parseFloat(getComputedStyle(document.querySelector('#heat .xtick text')).fontSize)"
    assert 6 <= browser.execute_script(font) <= 0.8 * (tops[1][0] - tops[0][0])  # at 60 degrees a label has 0.87 of a row


def test_dark_pages_have_light_words(opened):
    def brightness():
        script = "return getComputedStyle(document.querySelector('#heat .ytick text')).fill"
        return sum(int(part) for part in re.findall(r"\d+", opened.execute_script(script))[:3])

    assert brightness() < 200
    look(opened, WIDE, "dark")
    until(opened, lambda: brightness() > 500)


def test_a_real_encoder_on_torch_shows_what_numpy_computes(browser, minilm, tmp_path):
    ok("attend", SENTENCE, "--model", minilm, "--backend", "torch", "--output", tmp_path / "page.html")
    ready(opened_afresh(browser, f"{(tmp_path / 'page.html').as_uri()}#layer=1&head=11"))
    weights, tokens = mha.TextEncoder.from_pretrained(minilm, backend="numpy").attention_maps(SENTENCE)
    np.testing.assert_allclose(heat(browser), weights[1, 11], atol=2e-5)
    at = tokens.index("##ed")
    hover(browser, token(browser, "from", at))
    assert said(browser).startswith(f"##ed → nest {weights[1, 11, at, at - 1]:.3f}")
    assert weights[1, 11, at, at - 1] > 0.5
