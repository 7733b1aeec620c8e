"""The page of the report: its tables, figures and text; it loads nothing."""

import doctest
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from sample_history import LAST, STEP, SUBJECTS, TIME, UNMEASURED, line, measured, only

from mha_conformance.history import page, results, units
from mha_conformance.history.changes import judged
from mha_conformance.history.figures import COLOURS, figure, hovers, styles_of


@pytest.fixture(scope="module")
def text(history):
    return page.rendered(history)


class Elements(HTMLParser):
    """Names and attributes of a page's elements, its text, and the contents of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.words, self.inside = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def attribute(self, name):
        return [attributes[name] for _, attributes in self.elements if name in attributes]


# the table


def cells(history, machine, case, at=0):
    """The cells of a case in the table of one of the machine's benchmarks."""
    tables = page._tables(machine, history.backends)
    assert [table["benchmark"] for table in tables] == list(machine.benchmarks)
    return tables[at]["cells"][case]


def test_the_newest_value_of_each_backend_and_the_best_of_them(history, machine):
    row = cells(history, machine, "short")
    assert [cell.text for cell in row] == ["9.98 ms", "27.9 ms", "100 ms"]
    assert [cell.best for cell in row] == [True, False, False]
    assert row[0].note == row[1].note == ""
    when = machine.commits[-2]
    assert row[2].note == f"from an older commit: {when.short}, {when.date}"


def test_a_gap_says_why(history, machine):
    newest = machine.commits[-1]
    long = cells(history, machine, "long")
    assert (long[1].text, long[1].note) == ("", f"failed at {newest.short}, {newest.date}")
    memory = cells(history, machine, "long", 2)
    assert "2026-01-13" in memory[1].note and memory[1].text == "100 MB"
    table = page._tables(machine, history.backends)[2]
    assert list(table["cells"]) == ["long"]  # a case that nobody measured has no row


@pytest.mark.parametrize(
    ("values", "case", "expected"),
    [
        (
            {("a", "one"): 1.0, ("b", "one"): 1.0, ("a", "two"): 1.0},
            "two",
            [("1.00 s", "", False), ("", "not measured", False)],
        ),
        ({("a", "one"): 1.0}, "one", [("1.00 s", "", False)]),
        (
            {("a", "one"): 1.0001, ("b", "one"): 1.0, ("c", "one"): 1.01},
            "one",
            [("1.00 s", "", True)] * 2 + [("1.01 s", "", False)],
        ),
    ],
    ids=["a backend without a value", "one backend has no best", "all that are shown alike are best"],
)
def test_the_cells_of_a_case_have_their_value_a_note_and_the_best(small, values, case, expected):
    small.measure(small.hashes[0], TIME, values)
    history = results.read([small.config.parent])
    assert [(cell.text, cell.note, cell.best) for cell in cells(history, history.machines[0], case)] == expected


def test_units_suit_the_values():
    result = doctest.testmod(units)
    assert result.attempted > 0 and result.failed == 0
    assert units.shown(2.0, "parsecs") == "2.00 parsecs"
    assert units.shown(0.0, "seconds") == "0.00 µs" and units.shown(0, "bytes") == "0 B"


# the figures


def test_a_backend_looks_the_same_in_every_figure(history, machine):
    styles = styles_of(history.backends)
    for case in machine.cases:
        for trace in figure(machine, case, styles, [])["traces"]:
            assert trace["line"]["color"] == COLOURS[history.backends.index(trace["name"])]


def test_no_two_of_many_backends_look_alike():
    names = [f"backend {at}" for at in range(12)]
    assert len(set(styles_of(names).values())) == 12


def test_a_figure_has_a_line_for_each_backend_of_each_benchmark(history, machine):
    styles = styles_of(history.backends)
    assert [len(figure(machine, case, styles, [])["traces"]) for case in ("short", "long")] == [6, 9]
    shown = [trace["name"] for trace in figure(machine, "long", styles, [])["traces"] if trace["showlegend"]]
    assert shown == ["numpy", "torch", "late"]


def test_gaps_are_null_and_values_are_in_the_unit_of_the_title(history, machine):
    drawn = figure(machine, "long", styles_of(history.backends), [])
    assert drawn["traces"][0]["y"] == pytest.approx(
        [None if value is None else value * 1e3 for value in line(machine, TIME, "long", "numpy").values]
    )
    assert drawn["wide"]["annotations"][0]["text"] == "time, one thread (ms)"


def test_an_axis_is_logarithmic_if_values_differ_widely(small):
    values = {("a", "near"): 1.0, ("b", "near"): 2.0, ("a", "far"): 1.0, ("b", "far"): 20.0}
    small.measure(small.hashes[0], TIME, values)
    machine, styles = only(small), styles_of(["a", "b"])
    assert figure(machine, "near", styles, [])["wide"]["yaxis"]["type"] == "linear"
    axis = figure(machine, "far", styles, [])["wide"]["yaxis"]
    assert axis["type"] == "log" and axis["tickvals"] == [1, 2, 5, 10, 20, 50, 100, 200, 500]


def test_a_line_is_marked_where_it_became_worse(history, machine):
    steps = [step for each in machine.series for step in judged(each, machine).changes]
    traces = figure(machine, "short", styles_of(history.backends), steps)["traces"]
    (marked,) = [trace for trace in traces if isinstance(trace["marker"]["symbol"], list)]
    places = [at for at, symbol in enumerate(marked["marker"]["symbol"]) if symbol == "triangle-up"]
    assert marked["name"] == "torch" and [machine.commits[at].place for at in places] == [STEP]


def test_a_hover_text_has_the_commit_and_the_processor(machine):
    texts = hovers(machine)
    processor = "EPYC &lt;1&gt;, family 25 model 1 stepping 2, 2 cores,<br>avx2 avx512f, L2 512K, Linux x86_64"
    assert texts[0] == f"{machine.commits[0].short}, 2026-01-01<br>the change of day 1<br>{processor}"
    unknown = replace(machine, processors=("",) * len(machine.commits))
    assert hovers(unknown)[0].endswith("<br>processor unknown")


def test_points_of_different_processors_are_not_joined_and_those_of_unknown_ones_not_at_all(history, machine):
    count = len(machine.commits)
    mixed = replace(machine, processors=("a", "b", "", "") * (count // 4))
    traces = figure(mixed, "short", styles_of(history.backends), [])["traces"][:6]
    assert [(trace["name"], trace["mode"]) for trace in traces] == [
        (name, mode) for name in ("numpy", "torch") for mode in ("lines+markers", "lines+markers", "markers")
    ]
    for at, trace in enumerate(traces[:3]):
        there = [place for place, value in enumerate(trace["y"]) if value is not None]
        assert {mixed.processors[place] for place in there} == {("a", "b", "")[at]}


def test_a_long_subject_is_cut_in_a_hover_text(machine):
    (text,) = [text for text in hovers(machine) if "a long subject" in text]
    lines = text.split("<br>")
    assert len(lines) == 7 and max(map(len, lines)) < 60 and lines[4].endswith(" ...")


def test_a_subject_is_not_markup_in_a_hover_text(machine):
    (text,) = [text for text in hovers(machine) if "slower" in text]
    assert set(re.findall(r"<[^>]*>", text)) == {"<br>"}
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; 'quotes'" in text.replace("<br>", " ")


# the page


def test_markup_in_a_subject_is_shown_as_text(text):
    elements = Elements(text)
    assert len(elements.scripts) == 3
    assert [tag for tag, _ in elements.elements].count("b") == 1  # the factor of what became worse
    assert SUBJECTS[STEP] in " ".join(elements.words)
    data = json.loads(elements.scripts[0])
    assert len(data["ci-2core"]["hovers"]) == LAST + 1 - len(UNMEASURED)
    assert set(data["ci-2core"]["figures"]) == {"ci-2core--short", "ci-2core--long"}


def test_the_page_loads_nothing(text):
    elements = Elements(text)
    assert elements.attribute("src") == [] and elements.attribute("srcset") == []
    assert {tag for tag, attributes in elements.elements if "href" in attributes} == {"a", "link"}
    assert all(link.startswith(("#", "data:")) for link in elements.attribute("href"))
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert len(text) < 10e6


def test_every_link_has_a_target(text):
    elements = Elements(text)
    places = elements.attribute("id")
    assert len(places) == len(set(places))
    assert {link[1:] for link in elements.attribute("href") if link.startswith("#")} <= set(places)


def test_cases_whose_names_differ_only_in_punctuation_have_separate_plots(small):
    small.measure(small.hashes[0], TIME, {("numpy", case): 1.0 for case in ("a, b", "a b", "a-b")})
    assert set(page._anchors(only(small).cases, "ci-2core--").values()) == {
        "ci-2core--a-b",
        "ci-2core--a-b-2",
        "ci-2core--a-b-3",
    }


def test_the_head_says_what_was_measured_where(text):
    words = Elements(text).text
    for part in (
        "2026-01-14 the change of day 14",
        "12 commits since 2026-01-01",
        "EPYC <1>, family 25",
        "numpy\xa02.4.6",
        "no commits that changed",
    ):
        assert part.replace("\xa0", " ") in words, part


def test_each_backend_has_its_verdict(text):
    words = Elements(text).text
    verdicts = words.partition("Lasting changes by backend")[2].partition("History by case")[0]
    assert "4 lines cannot be judged: 3 values on one processor; at least 6 are needed." in verdicts
    numpy, torch = verdicts.index(" numpy "), verdicts.index(" torch ")
    late = verdicts.index(" late ", torch)
    assert verdicts[numpy:torch].split() == ["numpy", "Nothing", "became", "worse."]
    assert verdicts[late:].split() == ["late", "Nothing", "became", "worse."]
    for word in ("Worse:", "short", "time, one thread", "20.0 ms", "28.0 ms", "1.40", "one of 2", "2026-01-10"):
        assert word in verdicts[torch:late]


def test_the_newest_commit_is_compared_with_the_one_before(small):
    measured(small, [1.0, 1.0, 1.0])
    steady = Elements(page.rendered(results.read([small.config.parent]))).text
    assert "None of 1 lines changed by more than its tolerance." in steady
    measured(small, [1.0, 1.0, 1.0, 1.2])
    words = Elements(page.rendered(results.read([small.config.parent]))).text
    newest = words.partition("The newest commit against the one before")[2].partition("Worst since")[0]
    for word in ("case", "numpy", "time, one thread", "1.00 s", "1.20 s", "1.20"):
        assert word in newest


def test_each_machine_has_its_section(small):
    measured(small, [1.0, 2.0])
    measured(small, [3.0], machine="h200")
    elements = Elements(page.rendered(results.read([small.config.parent])))
    assert {"#ci-2core", "#h200"} <= set(elements.attribute("href"))
    assert {"ci-2core--case", "h200--case"} <= set(elements.attribute("id"))


def test_the_name_of_a_backend_is_not_markup(small):
    name = "<i>a</i></script><script>"
    measured(small, [1.0], backend=name)
    elements = Elements(page.rendered(results.read([small.config.parent])))
    assert len(elements.scripts) == 3 and "i" not in [tag for tag, _ in elements.elements]
    (trace,) = json.loads(elements.scripts[0])["ci-2core"]["figures"]["ci-2core--case"]["traces"]
    assert "<i>" not in trace["name"] + trace["hovertemplate"]


def test_a_backend_that_has_always_failed_is_listed_without_values(small):
    measured(small, [None, None, None])
    history = results.read([small.config.parent])
    words = Elements(page.rendered(history)).text
    assert "numpy Nothing became worse." in words
    (cell,) = cells(history, history.machines[0], "case")
    assert cell.text == "" and cell.note.startswith("failed at ")
