"""Every block of docs/migration.md runs, alone, and asserts what it says."""

import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT, THIRD_PARTY

PAGE = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_block_runs_alone(code, minilm, tmp_path):
    assert "assert" in code
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code.replace("path/to/all-MiniLM-L6-v2", str(minilm))],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(THIRD_PARTY)},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#\s]+)", PAGE):
        assert target.startswith("https://") or (ROOT / "docs" / target).exists(), target
