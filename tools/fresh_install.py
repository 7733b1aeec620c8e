"""Install as the pages say, each in an environment with nothing else, and run the commands that follow; and install the wheels.

``PYTHONPATH=tests/support python tools/fresh_install.py [PAGE ... | wheels]`` does it in build/fresh, as .ci/run does. It needs
the network.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pages import MODEL, commands
from project import ROOT

FOLDER = ROOT / "build" / "fresh"
PAGES = ["README.md", "docs/from_scratch.md", "docs/start.md", "docs/conformance.md", "docs/native.md"]
"""The pages that say how to install something in a checkout."""
WHEELS = """\
python -m pip install --quiet build
for source in . ./text ./conformance; do python -m build --outdir wheels $source; done
pip install $(ls wheels/mha_core*.whl) "$(ls wheels/mha_text*.whl)[cli]" $(ls wheels/mha_conformance*.whl)
cd wheels
mha bench --quick --case tiny
mha conform numpy --quick -k embedding
"""
"""What is tried with wheels; the folder has no package to import."""


def script(page):
    """Return the commands of a page's console blocks as a script, without those of make, and those that are not run."""
    lines = [command.line for command in commands(page) if not command.not_run and not command.line.startswith("make ")]
    return "\n".join(lines).replace(MODEL, "$MHA_MODEL") + "\n"


def run(name, text):
    """Run a script in a copy of the commit, with an environment of its own beside it."""
    place, environment = FOLDER / name, FOLDER / f"environment-{name}"
    subprocess.run(["git", "clone", "--quiet", ROOT, place], check=True)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MHA_MODEL")}
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    settings = {
        "PATH": path,
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_QUIET": "1",
    }
    print(f"{name}:\n{text}", flush=True)
    subprocess.run(["bash", "-euxc", text], cwd=place, env=kept | settings | {"COLUMNS": "88"}, check=True)


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for page in sys.argv[1:] or [*PAGES, "wheels"]:
        run(Path(page).stem, WHEELS if page == "wheels" else script(ROOT / page))
