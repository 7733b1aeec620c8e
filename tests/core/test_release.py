"""The check-list of a release (tools/release.py): what it reports of versions, changes, certificates, commands and archives.

Building and installing take minutes and the network: ``make release-check`` does both.
"""

import importlib
import json
import shutil
import sys
import tarfile
import zipfile

import pytest
from project import ROOT

sys.path.insert(0, str(ROOT / "tools"))
try:
    release, archives, proofs = map(importlib.import_module, ("release", "archives", "proofs"))
finally:
    sys.path.remove(str(ROOT / "tools"))

PROJECTS = {each.name: each for each in archives.distributions()}
VERSION = PROJECTS["mha-core"].version
STATED = ["CITATION.cff", "mha_core/__init__.py", "text/mha_text/__init__.py", "conformance/mha_conformance/__init__.py"]


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with the files of this checkout that state versions."""
    for path in [*(each.folder / "pyproject.toml" for each in PROJECTS.values()), *(ROOT / name for name in STATED)]:
        to = tmp_path / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    return tmp_path


def replace(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_all_distributions_are_checked():
    folders = {path.parent for path in ROOT.glob("*/pyproject.toml")} | {
        path.parent for path in ROOT.glob("backends/*/pyproject.toml")
    }
    assert {each.folder for each in PROJECTS.values()} == folders | {ROOT}
    assert all(path.is_dir() for each in PROJECTS.values() for path in each.packages)


def test_the_versions_of_this_checkout_agree():
    assert list(release.versions()) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        ("text/mha_text/__init__.py", VERSION, "9.1", f"mha-text is 9.1; mha-core is {VERSION}"),
        ("backends/mha_jax/pyproject.toml", f'"{VERSION}"', '"9.1"', f"mha-jax is 9.1; mha-core is {VERSION}"),
        ("text/pyproject.toml", f"=={VERSION}", "==9.1", f"mha-text requires 9.1; mha-core is {VERSION}"),
        ("conformance/pyproject.toml", f"=={VERSION}", "==9.1", f"mha-conformance requires 9.1; mha-core is {VERSION}"),
        ("CITATION.cff", f"version: {VERSION}", "version: 9.1", f"CITATION.cff does not state version {VERSION}"),
    ],
)
def test_another_version_is_reported(checkout, file, old, new, fault):
    replace(checkout / file, old, new)
    assert list(release.versions(checkout)) == [fault]


@pytest.mark.parametrize(
    ("headings", "faults"),
    [
        ([f"{VERSION}, 2026-01-31", "0.0.1, 2025-01-31"], []),
        (
            [f"{VERSION}, not released"],
            [f"the first heading is '{VERSION}, not released'; expected '{VERSION}, ' and a date, such as 2026-01-31"],
        ),
        (
            ["9.1, 2026-01-31"],
            [f"the first heading is '9.1, 2026-01-31'; expected '{VERSION}, ' and a date, such as 2026-01-31"],
        ),
        ([f"{VERSION}, 2026-01-31", "Unreleased"], ["'Unreleased' is not released"]),
    ],
)
def test_a_change_log_that_is_not_of_this_version_is_reported(checkout, headings, faults):
    (checkout / "CHANGELOG.md").write_text("\n".join(f"## {line}\n\n- A change.\n" for line in headings), encoding="utf-8")
    assert list(release.changelog(checkout)) == faults


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"mha_core": "9.1"}, "one of 9.1, passed"),
        ({"result": "failed"}, f"one of {VERSION}, failed"),
        ({"quick": True}, f"one of {VERSION}, passed, quick"),
        (None, "no certificate"),
    ],
)
def test_a_backend_without_a_whole_certificate_of_this_version_is_reported(checkout, change, fault):
    folder = checkout / "backends" / "mha_jax" / "mha_jax"
    (folder / "certificates").mkdir(parents=True)
    (folder / "__init__.py").write_text("yield Backend(\n", encoding="utf-8")
    if change is not None:
        certificate = {"mha_core": VERSION, "result": "passed", "quick": False, "selection": ""} | change
        (folder / "certificates" / "jax.json").write_text(json.dumps(certificate), encoding="utf-8")
    faults = [f"mha_jax ships {fault}; expected one of {VERSION}, passed"] if fault else []
    assert list(release.certificates(checkout)) == faults


def test_a_command_that_installs_from_a_checkout_is_reported(checkout):
    (checkout / "mha_core" / "dispatch").mkdir()
    lines = {"mha-text": "'./text[cli]'", "mha-jax": "./backends/mha_jax", "mha-dask": "mha-dask"}
    text = "\n".join(f'[{name}]\ninstall = "pip install {what}"' for name, what in lines.items())
    (checkout / "mha_core" / "dispatch" / "known.toml").write_text(text, encoding="utf-8")
    assert list(release.commands(checkout)) == [
        "known.toml: change \"pip install './text[cli]'\" to \"pip install 'mha-text[cli]'\"",
        "known.toml: change 'pip install ./backends/mha_jax' to 'pip install mha-jax'",
    ]


def whole(each):
    """Return the names that a right wheel has."""
    info = [f"{each.stem}.dist-info/{name}" for name in ("METADATA", "entry_points.txt", "licenses/LICENSE")]
    return each.files() | {*info, *(["mha_native/_native.abi3.so"] if each.name == "mha-native" else [])}


@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_with_what_git_tracks_is_accepted(name):
    assert list(archives.in_wheel(PROJECTS[name], whole(PROJECTS[name]))) == []


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mha-core", "mha_core/py.typed"),
        ("mha-core", "mha_core/dispatch/known.toml"),
        ("mha-core", "mha_numpy/certificates/numpy.json"),
        ("mha-core", "mha_core/cli/templates/plugin.py.template"),
        ("mha-text", f"mha_text-{VERSION}.dist-info/licenses/LICENSE"),
        ("mha-jax", f"mha_jax-{VERSION}.dist-info/entry_points.txt"),
    ],
)
def test_a_file_that_a_wheel_lacks_is_reported(name, file):
    each = PROJECTS[name]
    files = {path for path in whole(each) if not path.startswith(file)}
    assert f"{file} is missing" in list(archives.in_wheel(each, files))


@pytest.mark.parametrize(("modules", "right"), [(["abi3.so"], True), (["so"], True), ([], False), (["cpython-313t.so"], False)])
def test_a_compiled_wheel_has_one_module_whose_name_every_system_imports(modules, right):
    each = PROJECTS["mha-native"]
    files = whole(each) - archives.MODULES | {f"mha_native/_native.{kind}" for kind in modules}
    assert (list(archives.in_wheel(each, files)) == []) is right


def test_what_a_wheel_must_have_is_reported_even_if_the_checkout_lacks_it(monkeypatch):
    each, files = PROJECTS["mha-core"], {"mha_core/__init__.py"}
    monkeypatch.setattr(archives.Distribution, "files", lambda self: files)
    missing = {line.removesuffix(" is missing") for line in archives.in_wheel(each, whole(each))}
    assert missing == {"mha_core/py.typed", *archives.NEEDED["mha-core"]}


def test_a_file_that_no_wheel_should_have_is_reported():
    each = PROJECTS["mha-text"]
    files = whole(each) | {"tests/text/test_encoder.py"}
    assert list(archives.in_wheel(each, files)) == ["tests/text/test_encoder.py is no file of a package that git tracks"]


@pytest.mark.parametrize(("name", "folder"), [("mha-core", ""), ("mha-core", "backends/"), ("mha-jax", "")])
def test_what_a_source_archive_lacks_is_reported(name, folder):
    each = PROJECTS[name]
    files = {str(path.relative_to(each.folder)) for package in each.packages for path in package.rglob("*")}
    files |= {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"}
    assert list(archives.in_source(each, files)) == []
    package = next(path.name for path in each.packages if str(path.relative_to(each.folder)).startswith(folder or path.name))
    for lost in (f"{folder}{package}/__init__.py", "LICENSE"):
        assert list(archives.in_source(each, files - {lost})) == [f"{lost} is missing"]


def test_files_of_both_kinds_of_archives_are_listed(tmp_path):
    (tmp_path / "a.py").write_text("", encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as wheel:
        wheel.write(tmp_path / "a.py", "a/a.py")
    with tarfile.open(tmp_path / "a-1.tar.gz", "w:gz") as source:
        source.add(tmp_path / "a.py", "a-1/a/a.py")
    assert [archives.names(tmp_path / name) for name in ("a-1-py3-none-any.whl", "a-1.tar.gz")] == [{"a/a.py"}, {"a/a.py"}]


@pytest.mark.parametrize("name", PROJECTS)
def test_each_distribution_has_the_licence(name):
    assert (PROJECTS[name].folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_libraries_are_what_is_not_of_this_project():
    lines = [line for name in proofs.WITH_LIBRARIES for line in proofs.libraries(PROJECTS[name], cli=True)]
    without = {*proofs.libraries(PROJECTS["mha-core"], cli=False)}
    assert without < {*lines} and not any("typer" in line for line in without)
    assert {"pluggy>=1.5", "typer>=0.15", "tokenizers>=0.22", "pytest>=8"} <= {*lines}
    assert not [line for line in lines if line.startswith("mha-")]


def test_the_last_lines_say_what_is_done_what_failed_and_what_is_left(monkeypatch, capsys):
    faults = ["no date\n    and a line about it", *(f"fault {number}" for number in range(release.MOST + 1))]
    monkeypatch.setattr(release, "STEPS", {"versions": list, "changelog": lambda: faults, "build": lambda: 1 / 0})
    monkeypatch.setattr(sys, "argv", ["release.py", "--step", "versions", "--step", "changelog"])
    assert release.main() == 1
    told, _, last = capsys.readouterr().out.rpartition("\n\n")
    assert all(f"  {fault}" in told for fault in faults)
    shown = ["  no date", *(f"  fault {number}" for number in range(release.MOST - 1)), "  and 2 more, above"]
    assert last.splitlines() == [
        "done: versions, 0 s",
        "failed: changelog, 0 s",
        *shown,
        *(f"to be done by a person: {line}" for line in release.PERSON),
    ]
    monkeypatch.setattr(sys, "argv", ["release.py", "--step", "versions"])
    assert release.main() == 0


def test_every_step_says_what_it_checks():
    assert [*release.CHECKS] == [*release.STEPS]


def test_a_command_that_fails_tells_why():
    code = "print('error: no header'); print(*range(50), sep='\\n'); raise SystemExit('the end')"
    with pytest.raises(RuntimeError) as error:
        archives.output(sys.executable, "-c", code)
    assert str(error.value).splitlines()[-4:] == ["    error: no header", "    48", "    49", "    the end"]
    assert " ends with 1\n" in str(error.value)
