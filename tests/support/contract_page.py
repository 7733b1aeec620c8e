"""The contract of plugins name by name, as docs/compatibility.md shows it.

``python tests/support/contract_page.py`` writes it into the page; tests/core/test_tools.py checks the page.
"""

from dataclasses import MISSING, fields

from project import ROOT
from public_surface import surface

from mha_core.dispatch import hookspecs
from mha_core.dispatch.contract import FEATURES, STATE_FEATURES, Backend, Collectives, Kernel
from mha_core.dispatch.registry import GROUP

PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- the contract: written by tests/support/contract_page.py -->\n\n", "<!-- end of the contract -->\n"
PLUGIN = "mha_core.plugin."


def contract():
    """Return the contract as Markdown."""
    hooks = sorted(name for name in vars(hookspecs) if name.startswith("mha_"))
    parts = [
        f"Entry points of the group `{GROUP}`. Hooks: {_listed(hooks)}.",
        _table("record", "required fields", "optional fields", map(_fields, (Backend, Kernel, Collectives))),
        f"Features that the state of a library may add to any call: {_listed(sorted(STATE_FEATURES))}.",
        _table("operation", "features", ((f"`{name}`", _listed(sorted(each)) or "none") for name, each in FEATURES.items())),
        "Names to import, with their parameters and members:",
        "```text\n" + "\n".join(_names()) + "\n```",
    ]
    return "\n\n".join(parts) + "\n\n"


def _fields(record):
    def named(*, required):
        return _listed(each.name for each in fields(record) if (each.default is each.default_factory is MISSING) is required)

    return f"`{record.__name__}`", named(required=True), named(required=False)


def _names():
    ours = False
    for line in surface():
        ours = line.removeprefix("class ").startswith(PLUGIN) if not line.startswith(" ") else ours
        if ours:
            yield line.replace(PLUGIN, "")


def _listed(names):
    return ", ".join(f"`{name}`" for name in names)


def _table(*heading_and_rows):
    *heading, rows = heading_and_rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows))


def written(page):
    """Return the text of a page with today's contract in it."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + contract() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
