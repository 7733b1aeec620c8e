"""The badge of a certificate: its words, its colours, and that it is valid SVG."""

from xml.etree import ElementTree

from mha_conformance.report.badge import badge

SECTIONS = {"kernels": {"passed": 30, "failed": 0}, "promises": {"passed": 4, "failed": 0}}
WHOLE = {
    "backend": "numpy",
    "result": "passed",
    "sections": SECTIONS,
    "quick": False,
    "selection": "",
    "date": "2026-11-26T10:00:00+00:00",
    "mha_core": "0.1.0",
}


def test_the_badge_is_green_only_for_the_whole_suite():
    worse = {"kernels": {"passed": 27, "failed": 3}}
    shown = {
        "#2e7d32": (WHOLE, "34 passed"),
        "#5d6b7a": ({**WHOLE, "quick": True}, "34 passed, quick"),
        "#b71c1c": ({**WHOLE, "result": "failed", "sections": worse}, "3 failed"),
    }
    for colour, (record, words) in shown.items():
        picture = ElementTree.fromstring(badge(record))
        texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
        assert texts == ["mha conform numpy", words] and colour in badge(record)
        assert float(picture.get("width")) > 6 * len("".join(texts))
    assert "34 passed, in part" in badge({**WHOLE, "selection": "-k x"})
