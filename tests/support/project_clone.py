"""A clone of this project, in which tests plant changes and run ``python -m tracking``."""

import os
import shutil
import sys

import processes
from project import ROOT
from sample_history import Repository

ATTEND = ("mha_core/ops/attention.py", '    return _attention(query, key, value, options.pop("sink", None), **options).out')
"""The file and the line of the public function in which tests plant a change."""


class Clone(Repository):
    """This working tree, committed in a new repository."""

    def __init__(self, root):
        super().__init__(root)
        for name in Repository(ROOT).git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
            if name.startswith(("asv_benches/results/", "asv_benches/facts/", "docs/")) or not (ROOT / name).is_file():
                continue
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("as it is")

    def commit(self, subject):
        self.git("add", "--all")
        return super().commit(subject)

    def append(self, path, text):
        with (self.root / path).open("a", encoding="utf-8") as file:
            file.write(text)

    def change(self, path, old, new, subject):
        text = (self.root / path).read_text(encoding="utf-8")
        assert old in text
        (self.root / path).write_text(text.replace(old, new, 1), encoding="utf-8")
        return self.commit(subject)

    def run(self, *words, also=(), status=None):
        """Run ``python -m tracking`` in the clone; ``also`` are folders of other distributions."""
        folders = (self.root / name for name in ("asv_benches", "", "backends", "conformance"))
        paths = os.pathsep.join(map(str, (*folders, *also)))
        options = {"cwd": self.root, "without": ("MACHINE", "MINUTES"), "PYTHONPATH": paths, "NO_COLOR": "1"}
        return processes.run([sys.executable, "-P", "-m", "tracking"], *words, status=status, **options)


def only_cases(clone, *names):
    """Leave only the counted cases with these names, and no slowdown that is accepted, and commit this."""
    (clone.root / "asv_benches/accepted.toml").write_text("")
    chosen = f"\n\nCOUNTED = {{name: COUNTED[name] for name in {names!r}}}\n"
    clone.append("conformance/mha_conformance/bench/instructions/cases.py", chosen)
    return clone.commit("fewer cases")
