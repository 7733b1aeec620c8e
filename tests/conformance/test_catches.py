"""The conformance suite finds every fault: each plugin of tests/support/wrong_plugins fails, by the promise that it breaks."""

import json
import sys

import pytest
from project import ROOT
from suite import run
from wrong_plugins import PLUGINS
from wrong_plugins.table import TABLE, markdown

from mha_conformance.report.promises import PROMISES

GROUPS = list(dict.fromkeys((plugin.module, plugin.section) for plugin in PLUGINS.values()))


def trouble(plugin, verdict):
    """Return what is wrong with the suite's verdict on a plugin; None if nothing is."""
    if plugin.says not in verdict["said"]:
        return f"{plugin.says!r} is not in {verdict['said']}"
    if plugin.is_right:
        return None if verdict["status"] == 0 else f"it is right, and {list(verdict['failed'])} failed"
    if verdict["status"] != 1:
        return f"{plugin.section} ended with status {verdict['status']}, and did not find: {plugin.fault}"
    named = {promise for promises in verdict["failed"].values() for promise in promises}
    if plugin.promise is not None and plugin.promise not in named:
        return f"the failed tests are of promises {sorted(named)}, not {plugin.promise}"
    return None


@pytest.mark.full
@pytest.mark.rotating
@pytest.mark.parametrize("group", GROUPS, ids="-".join)
def test_every_wrong_plugin_is_found_and_its_promise_named_and_a_right_twin_passes(group, tmp_path):
    """One process judges all plugins of a module by one section: the process takes longer to start than to judge them."""
    plugins = [plugin for plugin in PLUGINS.values() if (plugin.module, plugin.section) == group]
    done = run([sys.executable, "-m", "wrong_plugins.judge"], *(plugin.id for plugin in plugins), cwd=tmp_path, status=0)
    verdicts = json.loads(done.stdout)
    found = {plugin.id: trouble(plugin, verdicts[plugin.id]) for plugin in plugins}
    assert not any(found.values()), {name: text for name, text in found.items() if text}


@pytest.mark.parametrize("module", dict.fromkeys(plugin.module for plugin in PLUGINS.values()))
def test_every_module_has_a_right_twin(module):
    assert module in {plugin.module for plugin in PLUGINS.values() if plugin.is_right}


def test_every_promise_that_a_plugin_can_break_is_broken_by_one():
    """Promise 15 is core's: arguments are checked before any plugin is called. None: the fault breaks none of the promises."""
    assert {plugin.promise for plugin in TABLE} == set(PROMISES) - {15} | {None}
    assert len(TABLE) == len({plugin.id for plugin in TABLE}) > 24


def test_no_plugin_is_found_by_an_optional_package_alone():
    """test_vectors needs onnx."""
    assert "test_vectors" not in {plugin.section for plugin in PLUGINS.values()}


def test_the_table_in_the_docs_is_this_one():
    text = (ROOT / "docs" / "wrong-plugins.md").read_text(encoding="utf-8")
    assert markdown() in text
