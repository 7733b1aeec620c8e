"""What messages say of this project's distributions that are not installed."""

import re
import tomllib

import pytest
from project import ROOT

import mha_core as mha
from mha_core.dispatch import known


@pytest.mark.parametrize("name", known.distributions())
def test_the_command_installs_this_distribution(name):
    entry = known.distributions()[name]
    folder, extra = re.fullmatch(r"pip install '?(\.[\w/]*)(?:\[(\w+)\])?'?", entry["install"]).groups()
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == name
    assert extra is None or extra in project["optional-dependencies"]
    if "backend" in entry:
        assert entry["backend"] in project["entry-points"]["mha_core.plugins"]


def test_a_known_backend_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(known, "backends", lambda: {"abacus": "mha-jax"})
    with pytest.raises(mha.UnknownBackend) as error, mha.use_backend("abacus"):
        pass
    assert str(error.value).endswith("; mha-jax brings it: pip install ./backends/mha_jax, in a checkout of mha-core")
