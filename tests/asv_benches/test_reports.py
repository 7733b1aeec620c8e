"""The writer of reports: tables, pages, the origin of results, and durations."""

import json
import platform

import pytest

import reports


def test_a_table_has_a_rule_and_numbers_at_the_right_and_escapes_bars():
    rows = [("a | b", 1), ("c", 2.5)]
    assert reports.table(("name", "size"), rows, left=1).splitlines() == [
        "| name | size |",
        "| --- | ---: |",
        "| a \\| b | 1 |",
        "| c | 2.5 |",
    ]
    assert reports.table(("name", "size"), []).splitlines()[1] == "| --- | --- |"


def test_a_page_has_a_title_and_the_parts_that_are_not_empty():
    assert reports.page("Title", "", "one\n", "two") == "# Title\n\none\n\ntwo\n"


def test_the_origin_names_date_processor_and_versions_but_no_host():
    origin = reports.origin()
    sentence = reports.measured_on(origin, "make bench")
    assert sentence.startswith(f"Measured on {origin['date']} by `make bench`: {origin['machine']['model']}, ")
    assert f"python {platform.python_version()}" in sentence and platform.node() not in sentence


def test_text_is_inserted_between_two_marks_and_nowhere_else():
    page = "before\n<!-- a -->\n\nold\n\n<!-- b -->\nafter\n"
    assert reports.inserted(page, "<!-- a -->", "<!-- b -->", "new\n") == page.replace("old", "new")
    for begin, end in (("<!-- c -->", "<!-- b -->"), ("<!-- a -->", "<!-- c -->"), ("<!-- b -->", "<!-- a -->")):
        with pytest.raises(
            ValueError, match=r"^the page lacks <!-- \w --> or <!-- \w -->: add both, each on a line of its own$"
        ):
            reports.inserted(page, begin, end, "new")


def test_results_are_written_beside_their_page(tmp_path):
    reports.write(tmp_path / "folder" / "x", {"a": 1}, "# X\n")
    assert json.loads((tmp_path / "folder" / "x.json").read_text()) == {"a": 1}
    assert (tmp_path / "folder" / "x.md").read_text() == "# X\n"


def test_durations_reach_from_milliseconds_to_years():
    seconds = (0.0123, 1.5, 90, 7200, 86400 * 3, 86400 * 365.25 * 2, 1e-5)
    assert list(map(reports.long_duration, seconds)) == ["12.3 ms", "1.5 s", "1.5 min", "2 h", "3 d", "2 y", "0.01 ms"]
