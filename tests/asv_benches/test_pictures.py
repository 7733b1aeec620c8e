"""The command ``python -m pictures``: what it asks of the browser."""

import shlex

from pages import commands
from project import ROOT

import pictures

BROWSER = """#!/bin/sh
for word; do case $word in --screenshot=*) echo "$@" > "${word#--screenshot=}";; esac; done
"""


def test_a_page_is_taken_light_and_dark_by_a_browser_without_a_network(tmp_path, monkeypatch):
    browser = tmp_path / "chromium"
    browser.write_text(BROWSER)
    browser.chmod(0o755)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    pictures.take("file:///page.html#layer=1", "page", str(browser), "400,900")
    light, dark = ((tmp_path / "docs" / f"page{suffix}.png").read_text() for suffix in ("", "-dark"))
    assert light.endswith("file:///page.html#layer=1\n") and "--window-size=400,900" in light
    assert all("MAP * ~NOTFOUND" in words for words in (light, dark))
    assert "--force-dark-mode" in dark and "--force-dark-mode" not in light


def test_the_picture_of_attend_is_of_the_page_that_the_command_in_the_readme_writes():
    shown = [shlex.split(command.line) for command in commands(ROOT / "README.md")]
    assert ["mha", "attend", *pictures.ATTEND, "--output", "page.html"] in shown
