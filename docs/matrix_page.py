"""``python docs/matrix_page.py``: write matrix.md, and the README's table of backends, from the plugins and their certificates.

tests/core/cli/test_certificates.py checks that both are up to date. Plugins of ``make build/backends/ready`` are read too.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "build" / "backends"))
sys.path.append(str(ROOT / "build" / "native"))
sys.path.append(str(ROOT / "asv_benches"))

import reports  # noqa: E402
from mha_core.cli import certificates, matrix  # noqa: E402
from mha_core.dispatch import known  # noqa: E402
from mha_core.dispatch.registry import registry  # noqa: E402

PAGE, README = ROOT / "docs" / "matrix.md", ROOT / "README.md"
BEGIN, END = "<!-- written by docs/matrix_page.py -->", "<!-- end -->"
LIBRARIES = {
    "numpy": ("NumPy", "contained in mha-core"),
    "torch": ("torch", "`pip install -e '.[torch]'`"),
    "cupy": ("CuPy", "`pip install -e '.[cupy]'`"),
    "jax": ("JAX", ""),
    "mlx": ("MLX", ""),
    "dask": ("Dask", ""),
    "ndonnx": ("ndonnx", ""),
}
"""How the field writes the name of each library, and what installs a backend that mha-core contains."""


def backends():
    """Return the table of backends: what installs each, and what judged it."""
    lines = ["| array library | install it, in a checkout with mha-core | certificate of conformance |", "| --- | --- | --- |"]
    shipped, others = certificates.certificates()[0], known.backends()
    for name, (library, contained) in LIBRARIES.items():
        install = contained or f"`{known.distributions()[others[name]]['install']}`"
        proof = "<br>".join(_proof(each) for each in shipped.get(name, ())) or "none yet"
        lines.append(f"| {library} | {install} | {proof} |")
    return "\n".join(lines) + "\n"


def _proof(certificate):
    passed, failed = (sum(each[outcome] for each in certificate["sections"].values()) for outcome in ("passed", "failed"))
    versions = ", ".join(f"{name} {version}" for name, version in list(certificate["libraries"].items())[:1])
    judged = f"{passed:,} tests passed" + (f", {failed:,} failed" if failed else "")
    device = certificate["device"] if " object at " not in certificate["device"] else ""
    where = ", ".join(filter(None, (certificates.summary(certificate), device)))
    return f"{where}: {judged}" + (f", with {versions}" if versions else "")


def features():
    """Return the matrix of operations and features."""
    rows = matrix.rows(certificates.certificates()[0])
    return "\n".join(matrix.markdown([row for name in LIBRARIES for row in rows if row["backend"] == name])) + "\n"


def pages():
    """Return the text of each page as it should be."""
    return {
        README: reports.inserted(README.read_text(encoding="utf-8"), BEGIN, END, backends()),
        PAGE: reports.inserted(PAGE.read_text(encoding="utf-8"), BEGIN, END, backends() + "\n" + features()),
    }


if __name__ == "__main__":
    absent = sorted(set(LIBRARIES) - set(registry().backends))
    if absent:
        sys.exit(f"no plugin provides {', '.join(absent)}: run make build/backends/ready")
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
