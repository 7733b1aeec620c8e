"""What ``make coverage`` prints: the shares of lines and branches, by package."""

from package_coverage import package, shares


def summary(*counts):
    return {"summary": dict(zip(("covered_lines", "num_statements", "covered_branches", "num_branches"), counts, strict=True))}


def test_files_of_a_package_are_added():
    files = {"mha_core/algebra/a.py": summary(8, 10, 1, 4), "mha_core/algebra/b.py": summary(2, 10, 0, 0)}
    assert shares({"files": files | {"mha_core/empty.py": summary(0, 0, 0, 0)}}) == {
        "mha_core": (1.0, 1.0),
        "mha_core.algebra": (0.5, 0.25),
    }


def test_a_package_is_named_as_it_is_imported():
    names = {
        "mha_core/__init__.py": "mha_core",
        "mha_core/dispatch/keys/x.py": "mha_core.dispatch",
        "backends/mha_numpy/attention/tiles.py": "mha_numpy.attention",
        "text/mha_text/models/bert.py": "mha_text.models",
        "conformance/mha_conformance/judge/held.py": "mha_conformance.judge",
    }
    assert {path: package(path) for path in names} == names
