"""Chromium without a network, for tests of HTML pages.

The fixture is in conftest.py; ``needs_browser`` skips a test where the browser is not installed.
"""

import json
import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
DRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name has an address
]
WIDE, NARROW = (1280, 900), (400, 800)
PATIENCE = 20  # seconds, enough for a busy machine

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs Chromium and chromedriver: apt-get install chromium chromium-driver"
)


@contextmanager
def chromium():
    """Yield Selenium's driver; ``requests`` and ``get_log`` read its logs."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def opened_afresh(browser, url):
    """Open a page in light colors and a wide window, with logs that begin with it; return the browser."""
    browser.get("about:blank")
    for log in ("performance", "browser"):
        browser.get_log(log)
    look(browser, WIDE)
    browser.get(url)
    return browser


def look(browser, size, scheme="light"):
    """Set the size of the window and the preferred color scheme."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(browser, condition):
    """Wait until ``condition()`` is true, and return its value."""
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, PATIENCE, poll_frequency=0.05).until(lambda _: condition())


def requests(browser):
    """Return the address of every request of the page."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [each["request"]["url"] for each in sent]


def hover(browser, element):
    """Move the mouse over an element."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser, duration=50).move_to_element(element).perform()


def complaint(browser, script):
    """Run a script in the page, and return the first message that the browser logs."""
    messages = []
    browser.execute_script(script)
    until(browser, lambda: messages.extend(browser.get_log("browser")) or messages)
    return messages[0]["message"]


IMAGE_FROM_ELSEWHERE = "new Image().src = 'https://example.invalid/a.png'"
