"""The report of what asv has measured: its numbers, its verdicts, its words, and what it refuses."""

import doctest
import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from sample_history import (
    COST,
    DISPATCH,
    LAST,
    LATE,
    MEMORY,
    NAN,
    SLOWER,
    STEP,
    SUBJECTS,
    TIME,
    UNMEASURED,
    Project,
    planted,
    steady,
)
from tracking import page, series, units
from tracking.__main__ import app
from tracking.figures import COLOURS, figure, hovers, looks
from tracking.regressions import THRESHOLD, regressions


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def history(project):
    return series.read(project.config)


@pytest.fixture(scope="module")
def machine(history):
    (machine,) = history.machines
    return machine


@pytest.fixture(scope="module")
def text(history):
    return page.rendered(history)


@pytest.fixture
def small(tmp_path):
    """One benchmark of one case, to be measured."""
    project = Project(tmp_path)
    for at in range(8):
        project.commit(f"commit {at}")
    return project


def line(machine, benchmark, case, backend):
    (found,) = [each for each in machine.series if (each.benchmark.name, each.case, each.backend) == (benchmark, case, backend)]
    return found


def measured(project, values, backend="numpy", **options):
    """A value for each commit."""
    described = project.benchmark(TIME, [backend], ["case"])
    for commit, value in zip(project.hashes, values, strict=False):
        project.measure(commit, described, {(backend, "case"): value}, **options)


def only(project):
    (machine,) = series.read(project.config).machines
    return machine


class Elements(HTMLParser):
    """Names and attributes of a page's elements, its words, and what its scripts hold."""

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

    def attribute(self, name):
        return [attributes[name] for _, attributes in self.elements if name in attributes]


# the numbers


def test_each_line_has_the_values_that_were_measured_and_gaps_elsewhere(machine, project):
    days = [at for at in range(LAST + 1) if at not in UNMEASURED]
    assert [commit.hash for commit in machine.commits] == [project.hashes[at] for at in days]
    assert [commit.place for commit in machine.commits] == days
    assert line(machine, TIME, "short", "torch").values == tuple(
        0.020 * (SLOWER if at >= STEP else 1) * steady(at) for at in days
    )
    assert line(machine, TIME, "long", "numpy").values == tuple(None if at == 6 else 0.5 * steady(at) for at in days)
    assert line(machine, MEMORY, "long", "late").values == tuple(1e8 if LATE <= at < LAST else None for at in days)


def test_a_backend_that_the_last_writer_did_not_know_is_there(machine, history, project):
    assert "late" not in (project.results / "benchmarks.json").read_text(encoding="utf-8")
    assert history.backends == ("numpy", "torch", "late")
    assert {each.benchmark.name for each in machine.series if each.backend == "late"} == {TIME, COST, MEMORY}


def test_what_failed_is_no_gap_like_another(machine):
    torch = line(machine, TIME, "long", "torch")
    assert torch.failed == {len(machine.commits) - 1} and torch.values[-1] is None
    assert line(machine, TIME, "long", "numpy").failed == frozenset()


def test_time_stands_first_then_cost_then_what_has_fewer_cases(machine):
    assert [each.name for each in machine.benchmarks] == [TIME, COST, MEMORY]
    assert [each.title for each in machine.benchmarks] == ["time, one thread", "cost relative to plain NumPy", "peak memory"]


def test_a_benchmark_without_a_title_has_its_name(small):
    described = small.benchmark(DISPATCH, ["numpy"], ["attention, causal"])
    small.measure(small.hashes[0], described, {("numpy", "attention, causal"): 2.0})
    (found,) = only(small).series
    assert (found.benchmark.title, found.benchmark.unit, found.case) == (DISPATCH, "us", "attention, causal")


def test_values_of_another_version_are_left_out(small):
    old, new = ({"version": version} for version in "12")
    for at, version in enumerate([old, old, new, new]):
        described = small.benchmark(TIME, ["numpy"], ["case"], **version)
        small.measure(small.hashes[at], described, {("numpy", "case"): at + 1.0})
    machine = only(small)
    assert [commit.hash for commit in machine.commits] == small.hashes[2:4]
    assert machine.series[0].values == (3.0, 4.0)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_two_values_the_later_measured_stays(small, order):
    for hour in order:
        when = datetime(2026, 1, 1, hour, tzinfo=UTC)
        measured(small, [float(hour)], environment=f"env{hour}", started=when)
    assert only(small).series[0].values == (2.0,)


def test_a_run_that_skipped_a_backend_takes_no_value_away(small):
    measured(small, [1.0], environment="a", started=datetime(2026, 1, 1, tzinfo=UTC))
    measured(small, [NAN], environment="b", started=datetime(2026, 1, 2, tzinfo=UTC))
    assert only(small).series[0].values == (1.0,)


def test_commits_of_a_branch_that_was_merged_are_left_out_and_counted(small):
    small.git("checkout", "--quiet", "-b", "side", small.hashes[3])
    small.commit("aside")
    aside = small.hashes.pop()
    small.git("checkout", "--quiet", "main")
    small.git("merge", "--quiet", "--no-ff", "--message=merge", "side", day=9)
    small.hashes.append(small.git("rev-parse", "HEAD"))
    measured(small, map(float, range(1, 10)))
    small.measure(aside, small.known[TIME], {("numpy", "case"): 100.0})
    history = series.read(small.config)
    assert history.strangers == 1
    assert history.machines[0].series[0].values == tuple(map(float, range(1, 10)))
    assert [commit.subject for commit in history.machines[0].commits][-2:] == ["commit 7", "merge"]


def test_each_machine_has_its_own_history(small):
    measured(small, [1.0, 2.0])
    measured(small, [3.0], machine="h200")
    history = series.read(small.config)
    assert [(each.name, len(each.commits)) for each in history.machines] == [("ci-2core", 2), ("h200", 1)]
    found = Elements(page.rendered(history))
    assert {"#ci-2core", "#h200"} <= set(found.attribute("href"))
    assert {"ci-2core--case", "h200--case"} <= set(found.attribute("id"))


# regressions


def test_a_regression_is_of_one_backend_in_one_case(machine, project):
    (found,) = [step for each in machine.series for step in regressions(each, machine.commits)]
    assert found.series is line(machine, TIME, "short", "torch")
    assert (found.good.hash, found.bad.hash, found.suspects) == (project.hashes[7], project.hashes[9], 2)
    assert found.before == pytest.approx(0.020, rel=0.01) and found.after == pytest.approx(0.028, rel=0.01)
    assert found.factor == pytest.approx(SLOWER, rel=0.01)


@pytest.mark.parametrize(
    ("levels", "count"),
    [
        ([1, 1, 1, 1, 1, 1, 1, 1], 0),
        ([2, 2, 2, 2, 1, 1, 1, 1], 0),
        ([1, 1, 2, 2, 2, 1, 1, 1], 0),
        ([1, 1, 1, 1, 1 + 0.8 * THRESHOLD, 1 + 0.8 * THRESHOLD, 1 + 0.8 * THRESHOLD, 1 + 0.8 * THRESHOLD], 0),
        ([1, 1, 1, 1, 1 + 2 * THRESHOLD, 1 + 2 * THRESHOLD, 1 + 2 * THRESHOLD, 1 + 2 * THRESHOLD], 1),
        ([1, 1, 1, None, None, 2, 2, 2], 1),
    ],
    ids=["level", "faster", "made good", "below the threshold", "above it", "across a gap"],
)
def test_a_step_counts_where_it_is_up_and_stays(small, levels, count):
    measured(small, [level and level * steady(at) for at, level in enumerate(levels)])
    machine = only(small)
    assert len(regressions(machine.series[0], machine.commits)) == count


def test_a_regression_has_no_factor_from_nothing(small):
    measured(small, [-1.0, -1.01, -0.99, -1.0, 3.0, 3.01, 2.99, 3.0])
    machine = only(small)
    (found,) = regressions(machine.series[0], machine.commits)
    assert found.factor is None


def test_each_backend_has_its_verdict(text):
    words = " ".join(" ".join(Elements(text).words).split())
    verdicts = words.partition("Regressions, backend by backend")[2].partition("Over time")[0]
    numpy, torch = verdicts.index(" numpy "), verdicts.index(" torch ")
    late = verdicts.index(" late ", torch)
    assert verdicts[numpy:torch].split() == ["numpy", "None", "found."]
    assert verdicts[late:].split() == ["late", "None", "found."]
    for word in ("short", "time, one thread", "20.0 ms", "28.0 ms", "1.40", "one of 2", "2026-01-10"):
        assert word in verdicts[torch:late]


# the table


def cells(history, machine, case):
    (table,) = page._tables(machine, history.backends)
    return dict(table.rows)[case]


def test_the_newest_value_of_each_backend_and_the_best_of_them(history, machine):
    row = cells(history, machine, "short")
    assert [cell.text for cell in row[:3]] == ["9.98 ms", "27.9 ms", "100 ms"]
    assert [cell.best for cell in row[:3]] == [True, False, False]
    assert row[0].note == row[1].note == ""
    when = machine.commits[-2]
    assert row[2].note == f"of an older commit: {when.short}, {when.date}"


def test_a_gap_says_why(history, machine):
    newest = machine.commits[-1]
    long = cells(history, machine, "long")
    assert (long[1].text, long[1].note) == ("", f"failed at {newest.short}, {newest.date}")
    short = cells(history, machine, "short")
    assert [(cell.text, cell.note) for cell in short[6:]] == [("", "not measured")] * 3
    assert "2026-01-13" in long[7].note and long[7].text == "100 MB"


def test_a_row_of_one_backend_has_no_best(small):
    measured(small, [1.0])
    history = series.read(small.config)
    assert [cell.best for cell in cells(history, history.machines[0], "case")] == [False]


def test_values_that_read_alike_are_all_best(small):
    described = small.benchmark(TIME, ["a", "b", "c"], ["case"])
    small.measure(small.hashes[0], described, {("a", "case"): 1.0001, ("b", "case"): 1.0, ("c", "case"): 1.01})
    history = series.read(small.config)
    assert [cell.best for cell in cells(history, history.machines[0], "case")] == [True, True, False]


def test_cases_without_a_benchmark_in_common_have_tables_of_their_own(small):
    for name, cases in ((TIME, ["a", "b"]), (COST, ["b", "c"]), (DISPATCH, ["d"])):
        described = small.benchmark(name, ["numpy"], cases)
        small.measure(small.hashes[0], described, {("numpy", case): 1.0 for case in cases})
    history = series.read(small.config)
    tables = page._tables(history.machines[0], history.backends)
    assert [[case for case, _ in table.rows] for table in tables] == [["a", "b", "c"], ["d"]]


def test_units_suit_the_values():
    found = doctest.testmod(units)
    assert found.attempted > 0 and found.failed == 0
    assert units.shown(2.0, "parsecs") == "2.00 parsecs"
    assert units.shown(0.0, "seconds") == "0.00 µs"


# the figures


def test_a_backend_looks_the_same_in_every_figure(history, machine):
    look = looks(history.backends)
    for case in machine.cases:
        for trace in figure(machine, case, look, [])["traces"]:
            assert trace["line"]["color"] == COLOURS[history.backends.index(trace["name"])]


def test_a_figure_has_a_line_for_each_backend_of_each_benchmark(history, machine):
    look = looks(history.backends)
    assert [len(figure(machine, case, look, [])["traces"]) for case in ("short", "long")] == [6, 9]
    shown = [trace["name"] for trace in figure(machine, "long", look, [])["traces"] if trace["showlegend"]]
    assert shown == ["numpy", "torch", "late"]


def test_gaps_are_null_and_values_are_in_the_unit_of_the_title(history, machine):
    drawn = figure(machine, "long", looks(history.backends), [])
    assert drawn["traces"][0]["y"] == pytest.approx(
        [None if value is None else value * 1e3 for value in line(machine, TIME, "long", "numpy").values]
    )
    assert drawn["wide"]["annotations"][0]["text"] == "time, one thread (ms)"


def test_an_axis_is_logarithmic_where_values_lie_far_apart(small):
    described = small.benchmark(TIME, ["a", "b"], ["near", "far"])
    values = {("a", "near"): 1.0, ("b", "near"): 2.0, ("a", "far"): 1.0, ("b", "far"): 20.0}
    small.measure(small.hashes[0], described, values)
    machine, look = only(small), looks(["a", "b"])
    assert figure(machine, "near", look, [])["wide"]["yaxis"]["type"] == "linear"
    axis = figure(machine, "far", look, [])["wide"]["yaxis"]
    assert axis["type"] == "log" and axis["tickvals"] == [1, 2, 5, 10, 20, 50, 100, 200, 500]


def test_a_regression_is_marked_where_it_happened(history, machine):
    found = [step for each in machine.series for step in regressions(each, machine.commits)]
    traces = figure(machine, "short", looks(history.backends), found)["traces"]
    (marked,) = [trace for trace in traces if isinstance(trace["marker"]["symbol"], list)]
    places = [at for at, symbol in enumerate(marked["marker"]["symbol"]) if symbol == "triangle-up"]
    assert marked["name"] == "torch" and [machine.commits[at].place for at in places] == [STEP]


def test_a_hover_text_has_the_commit_and_the_processor(machine):
    texts = hovers(machine)
    assert texts[0] == f"{machine.commits[0].short}, 2026-01-01<br>the change of day 1<br>cpu of ci-2core"
    assert texts[-1].endswith("<br>EPYC &lt;1&gt;, 2 cores, avx2 avx512f, Linux x86_64")


def test_a_long_subject_is_cut_in_a_hover_text(machine):
    (text,) = [text for text in hovers(machine) if "a long subject" in text]
    lines = text.split("<br>")
    assert len(lines) == 6 and max(map(len, lines)) < 60 and lines[4].endswith(" ...")


def test_a_subject_is_no_markup_in_a_hover_text(machine):
    (text,) = [text for text in hovers(machine) if "slower" in text]
    assert set(re.findall(r"<[^>]*>", text)) == {"<br>"}
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; 'quotes'" in text.replace("<br>", " ")


# the page


def test_the_page_holds_what_others_wrote_as_words(text):
    found = Elements(text)
    assert len(found.scripts) == 3
    assert [tag for tag, _ in found.elements].count("b") == 1  # the factor of the regression
    assert SUBJECTS[STEP] in " ".join(found.words)
    data = json.loads(found.scripts[0])
    assert len(data["ci-2core"]["hovers"]) == LAST + 1 - len(UNMEASURED)
    assert set(data["ci-2core"]["figures"]) == {"ci-2core--short", "ci-2core--long"}


def test_the_page_loads_nothing(text):
    found = Elements(text)
    assert found.attribute("src") == [] and found.attribute("srcset") == []
    assert {tag for tag, attributes in found.elements if "href" in attributes} == {"a", "link"}
    assert all(link.startswith(("#", "data:")) for link in found.attribute("href"))
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert len(text) < 10e6


def test_every_link_has_its_place(text):
    found = Elements(text)
    places = found.attribute("id")
    assert len(places) == len(set(places))
    assert {link[1:] for link in found.attribute("href") if link.startswith("#")} <= set(places)


def test_cases_whose_names_differ_by_signs_have_plots_of_their_own(small):
    described = small.benchmark(TIME, ["numpy"], ["a, b", "a b", "a-b"])
    small.measure(small.hashes[0], described, {("numpy", case): 1.0 for case in ("a, b", "a b", "a-b")})
    assert set(page._anchors(only(small).cases, "ci-2core--").values()) == {
        "ci-2core--a-b",
        "ci-2core--a-b-2",
        "ci-2core--a-b-3",
    }


def test_the_head_says_what_was_measured_where(text):
    words = " ".join(" ".join(Elements(text).words).split())
    for part in ("2026-01-14 the change of day 14", "12 commits since 2026-01-01", "EPYC <1>, 2 cores", "numpy\xa02.4.6"):
        assert part.replace("\xa0", " ") in words, part


# the command


def run(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_the_command_writes_the_page(project, tmp_path):
    output = tmp_path / "new" / "report.html"
    done = run("--config", project.config, "--output", output)
    assert done.exit_code == 0, done.output
    assert output.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]


def refused(project, tmp_path):
    """What is said where there is no page to be made; none is."""
    output = tmp_path / "report.html"
    done = run("--config", project.config, "--output", output)
    assert done.exit_code == 1 and not output.exists() and done.stdout == ""
    return done.stderr


def test_without_results_the_command_says_what_measures(small, tmp_path):
    said = refused(small, tmp_path)
    assert said == (
        f"error: no results in {small.results}: `make bench` measures this commit, `make bench-history` those before it\n"
    )


def test_results_of_other_commits_alone_are_no_history(small, tmp_path):
    measured(small, [1.0])
    small.git("update-ref", "refs/heads/main", small.git("commit-tree", "-m", "another root", "HEAD^{tree}"))
    assert "is of a benchmark and a commit of this branch" in refused(small, tmp_path)


def test_without_a_repository_the_command_says_so(small, tmp_path):
    measured(small, [1.0])
    (small.root / ".git").rename(small.root / "git")
    (small.root / ".git").write_text("gitdir: nowhere\n", encoding="utf-8")
    assert "git knows no commits in" in refused(small, tmp_path)


def test_a_benchmark_without_a_backend_is_refused(small, tmp_path):
    measured(small, [1.0])
    small.known[TIME]["param_names"] = ["case", "backend"]
    small.benchmark(COST, ["numpy"], ["case"])  # writes both
    assert f"the first parameter of {TIME} is not backend, but case" in refused(small, tmp_path)


def test_a_results_file_that_is_broken_is_an_error(small, tmp_path):
    measured(small, [1.0])
    (path,) = (small.results / "ci-2core").glob("*-env.json")
    path.write_text("{", encoding="utf-8")
    assert f"Error parsing JSON in file '{path}'" in refused(small, tmp_path)


def test_results_of_other_commits_are_named_beside_a_page(small, tmp_path):
    measured(small, [1.0, 2.0])
    small.git("update-ref", "refs/heads/main", small.hashes[0])
    done = run("--config", small.config, "--output", tmp_path / "report.html")
    assert done.exit_code == 0 and "left out: 1 measured commit that is" in done.stderr


def test_a_page_that_fails_leaves_the_one_before(project, tmp_path, monkeypatch):
    output = tmp_path / "report.html"
    output.write_text("before", encoding="utf-8")
    history = series.read(project.config)
    monkeypatch.setattr(page, "get_plotlyjs", lambda: "\ud800")  # no UTF-8: fails in the middle of writing
    with pytest.raises(UnicodeEncodeError):
        page.write(history, output)
    assert output.read_text(encoding="utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
