"""What the README prints runs as printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [line[2:].partition("#")[0].strip() for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]
MODEL = "path/to/all-MiniLM-L6-v2"


@pytest.mark.parametrize(
    "code", [code for kind, code in BLOCKS if kind == "python"], ids=lambda code: code.split("\n\n")[1][:30]
)
def test_python_runs(code, minilm, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace(MODEL, str(minilm))], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "print(" not in code or done.stdout.strip()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("mha ")])
def test_commands_run(command, minilm, tmp_path):
    words = shlex.split(command.replace(MODEL, str(minilm)).replace("examples/", f"{ROOT}/examples/"))
    done = subprocess.run(
        [str(Path(sys.executable).parent / words[0]), *words[1:]], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or list(tmp_path.iterdir())


def test_every_other_command_is_one_that_ci_runs():
    """make is run by .ci/run, pip by the Makefile: here only that their targets exist."""
    others = [command for command in COMMANDS if not command.startswith("mha ")]
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {command.split()[1] for command in others if command.startswith("make ")} == {"demo", "test"} <= targets
    assert all(command.startswith(("make ", "pip install")) for command in others)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
