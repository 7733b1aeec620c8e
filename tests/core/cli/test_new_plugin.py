"""``mha new-plugin``: what it writes can be installed and passes conformance unchanged, with the commands of its README."""

import re
import shlex
import shutil
import sys

import processes
import pytest
import yaml
from command import run
from processes import printed
from project import ROOT
from sample_history import Repository
from suite import MHA

from mha_conformance.history import results
from mha_core.cli.new_plugin import BadName, CannotWrite, write

NAME = "test_library"
PLACEHOLDER = re.compile(r"\$([a-zA-Z]|\{(?!\{))")  # but not ${{ }} of a workflow


def generated(folder, *options):
    """Return the root of a distribution as generated, and a private folder where it is installed."""
    done = run("new-plugin", NAME, *options, "--directory", folder)
    assert done.exit_code == 0, done.output
    root, site = folder / "mha-test-library", folder / "site"
    assert f"next:  cd {root} && pip install -e '.[test]' && python -m pytest tests" in done.stdout
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    printed([sys.executable, *install], "--target", site, root)
    return root, site


@pytest.fixture(scope="module")
def distribution(tmp_path_factory):
    """A distribution with a backend and a kernel."""
    return generated(tmp_path_factory.mktemp("plugins"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A distribution with an engine."""
    return generated(tmp_path_factory.mktemp("engines"), "--collectives")


def test_its_files_are_as_listed(distribution):
    root, site = distribution
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    modules = {"mha_test_library/__init__.py", "mha_test_library/arrays.py"}
    tracking = {".gitignore", "asv.conf.json", "benchmarks/__init__.py", ".github/workflows/conformance.yml"}
    assert files == {"README.md", "LICENSE", "pyproject.toml", "tests/test_conformance.py", *modules, *tracking}
    assert {path.relative_to(site).as_posix() for path in site.rglob("*.py")} == modules
    assert not any(PLACEHOLDER.search((root / path).read_text()) for path in files), "a placeholder was left"


def test_it_is_listed_and_imports_no_array_library(distribution):
    code = "import sys, mha_core as mha; print([b for b in mha.backends() if b.name == 'test_library'], 'numpy' in sys.modules)"
    said = printed(code, cwd=distribution[1], path=[distribution[1]])
    assert "distribution='mha-test-library', version='0.1.0', state='registered'" in said
    assert said.strip().endswith("False")


@pytest.mark.full
@pytest.mark.rotating
def test_it_passes_its_own_test_as_its_readme_says(distribution):
    root, site = distribution
    commands = re.findall(r"^\$ (.*)$", (root / "README.md").read_text(), flags=re.MULTILINE)
    assert commands[:2] == ["pip install -e '.[test]'", "python -m pytest tests"]
    command = [sys.executable, *shlex.split(commands[1])[1:], "-p", "no:cacheprovider"]
    assert "1 passed" in printed(command, cwd=root, path=[site])


@pytest.mark.full
def test_the_steps_of_its_workflow_run_and_write_the_badge_of_its_readme(distribution, tmp_path):
    """The steps that are commands, but for pip and git, with a part of the suite."""
    root = shutil.copytree(distribution[0], tmp_path / "mha-test-library")
    workflow = yaml.safe_load((root / ".github" / "workflows" / "conformance.yml").read_text())
    (job,) = workflow["jobs"].values()
    newest = job["strategy"]["matrix"]["include"][-1]
    assert newest["certificate"] and [each["python"] for each in job["strategy"]["matrix"]["include"]] == ["3.11", "3.14"]
    steps = [re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: newest[found[1]], step.get("run", "")) for step in job["steps"]]
    install, test, conform, publish = filter(None, steps)
    assert install == 'pip install "numpy" ".[test]"' and publish.splitlines()[-1] == "git push"
    for command, part in ((test, "-p no:cacheprovider --collect-only"), (conform, "--quick -k test_namespace")):
        program, *words = shlex.split(f"{command} {part}")
        printed([*(MHA if program == "mha" else [sys.executable]), *words], cwd=root, path=[distribution[1]])
    (picture,) = re.findall(r"^!\[conformance\]\((.*)\)$", (root / "README.md").read_text(), flags=re.MULTILINE)
    assert "passed, quick" in (root / picture).read_text()


@pytest.mark.full
def test_its_kernel_is_what_runs_and_is_judged(distribution):
    site = distribution[1]
    suite = [*MHA, "conform", NAME, "--quick", "--dtype", "float32", "-k", "test_kernels"]
    said = printed(suite, cwd=site.parent, path=[site])
    assert "attention-dense" not in said and " passed" in said
    module = site / "mha_test_library" / "__init__.py"
    source = module.read_text()
    try:  # the suite finds a fault in the kernel
        module.write_text(source.replace("p.query * p.scale", "p.query * p.scale * 1.01"))
        done = processes.run(suite, cwd=site.parent, path=[site])
    finally:
        module.write_text(source)
    assert done.returncode == 1
    assert "test_plain_attention[float32-attention-dense]" in done.stdout


@pytest.mark.asv
def test_its_history_is_tracked_as_its_readme_says(distribution, tmp_path):
    """With one case of each kind; the commands are those of the README from ``asv machine`` on."""
    _, site = distribution
    root = shutil.copytree(distribution[0], tmp_path / "mha-test-library")
    module = root / "benchmarks" / "__init__.py"
    module.write_text(module.read_text().replace("=BACKENDS", '=BACKENDS[:1], cases=["decode 1x8x1x64, 1024 keys"]', 1))
    module.write_text(module.read_text().replace("=BACKENDS)", '=BACKENDS[:1], cases=["decode 1x8x1x64, 8192 keys"])'))
    repository = Repository(root)
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.git("add", "--all")
    commit = repository.commit("planted-7f3")
    commands = re.findall(r"^\$ (.*)$", (root / "README.md").read_text(), flags=re.MULTILINE)
    machine, run_asv, report = commands[-3:]
    here = {"cwd": root, "path": [site], "HOME": str(tmp_path), "ASV_PYTHONPATH": str(site), "MHA_BENCH_CHECK": "1"}
    for line in (machine, run_asv.replace("$(git rev-parse HEAD)", commit), report):
        program, *words = shlex.split(line)
        printed([sys.executable, "-m", {"mha": "mha_core"}.get(program, program), *words], **here)
    (measured,) = results.read([root]).machines
    values = {(each.benchmark.name, each.case): each.values for each in measured.series}
    assert values.keys() == {
        ("Instructions.track_instructions", "decode 1x8x1x64, 1024 keys"),
        ("Instructions.track_cycles", "decode 1x8x1x64, 1024 keys"),
        ("Memory.track_peak", "decode 1x8x1x64, 8192 keys"),
        ("Time.time_call", "decode 1x8x1x64, 8192 keys"),
    }
    assert all(value and value > 0 for (value,) in values.values()), values
    assert "planted-7f3" in (root / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["distribution", "engine"])
@pytest.mark.parametrize("arguments", [["format", "--check"], ["check"]], ids=["format", "lint"])
def test_what_it_writes_is_formatted(kind, arguments, request):
    root, _ = request.getfixturevalue(kind)
    printed([sys.executable, "-m", "ruff", *arguments, "--no-cache", "--config", ROOT / "pyproject.toml", root], cwd=ROOT)


@pytest.mark.full
def test_an_engine_passes_its_own_test_as_its_readme_says(engine):
    root, site = engine
    assert not any(PLACEHOLDER.search(path.read_text()) for path in root.rglob("*.*") if path.is_file())
    test = [sys.executable, "-m", "pytest", "tests", "-p", "no:cacheprovider"]
    assert "3 passed" in printed(test, cwd=root, path=[site])
    module = root / "mha_test_library" / "__init__.py"  # pytest imports it from the folder where it runs
    source = module.read_text()
    module.write_text(source.replace("[text] * self.size", "[text[:9]] * self.size"))
    done = processes.run(test, "-k", "2", cwd=root, path=[site])
    module.write_text(source)
    assert done.returncode == 1
    assert "EngineFault" in done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Lib", "'My-Lib' cannot name a module; give lower-case letters, digits and single underscores, such as my_lib"),
        ("2fast", "'2fast' cannot name a module"),
        ("class", "'class' cannot name a module"),
        ("a/../b", "'a/../b' cannot name a module"),
        ("", "'' cannot name a module"),
        ("numpy", "a backend named 'numpy' is already installed, from mha-core; give another name"),
        ("mpi", "an engine named 'mpi' is already installed, from mha-core; give another name"),
    ],
)
def test_a_bad_name_is_refused_in_one_line(tmp_path, name, message):
    options, kind = (["--collectives"], "engine") if name == "mpi" else ([], "backend")
    done = run("new-plugin", name, *options, "--directory", tmp_path)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadName):
        write(name, tmp_path, kind)


def test_nothing_is_overwritten(tmp_path):
    page = tmp_path / "mha-mine" / "README.md"
    page.parent.mkdir()
    page.write_text("of someone else")
    done = run("new-plugin", "mine", "--directory", tmp_path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"error: {page.parent} already exists; give another --directory (nothing was written)\n"
    assert page.read_text() == "of someone else"
    assert [path.name for path in page.parent.iterdir()] == ["README.md"]
    with pytest.raises(CannotWrite, match="is not a directory; create it first"):
        write("mine", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
