"""No public name, parameter or default changes unnoticed."""

import difflib

from public_surface import RECORDED, surface


def test_the_public_surface_is_as_recorded():
    recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    changes = "\n".join(difflib.unified_diff(recorded, surface(), "recorded", "now", lineterm="", n=1))
    assert not changes, (
        f"the public surface changed:\n{changes}\n"
        "If users are meant to see this, run `python tests/support/public_surface.py` and commit it."
    )
