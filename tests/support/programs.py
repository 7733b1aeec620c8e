"""Programs in fresh interpreters."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

from processes import printed

ARRAY_LIBRARIES = ("numpy", "torch", "cupy", "jax", "dask", "array_api_compat", "array_api_strict")
# each backend is probed once, in a process that takes seconds to import its library, and its record is shown again and again
_BACKENDS = """
import contextlib, io, json, os, sys
from mha_core.cli import probe
from mha_core.cli.app import app
rows = probe.report()
probe.report = lambda name=None: [row for row in rows if name in (None, row["name"])]
def shown(width, *options):
    os.environ["COLUMNS"] = str(width)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        app(["backends", *options], standalone_mode=False)
    return out.getvalue()
print(json.dumps([[shown(*options) for options in {options}], sorted(sys.modules)]))
"""


def run(program, *path):
    """Return what a Python program prints as JSON, in a fresh interpreter; ``path`` are more directories to import from."""
    return json.loads(printed(program, path=path))


def install(site, name, source):
    """Write a distribution with one plugin module, as an installer does; without a source the module is missing."""
    if source is not None:
        (site / f"{name}_plugin.py").write_text(source, encoding="utf-8")
    info = site / f"mha_{name}-1.{len(name)}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mha-{name}\nVersion: 1.{len(name)}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[mha_core.plugins]\n{name} = {name}_plugin\n", encoding="utf-8")


LAME = """
from mha_core.plugin import Backend, hookimpl

@hookimpl
def mha_backends():
    yield Backend("lame", 1, ("lame:Array",), lambda: __import__("no_such_library"), install="pip install 'lame[all]'")
"""
"""A plugin whose library is missing."""


def shown_backends(options, *path):
    """Return what ``mha backends`` prints for each list of a width and options, and what it imported itself.

    ``path`` are more directories to import from.
    """
    return run(_BACKENDS.replace("{options}", repr(options)), *path)


# Each line of input has a program and directories. A child starts where the parent is: modules are imported, no plugin is read.
_FORKS = """
import contextlib, io, json, os, sys, traceback
{imports}
for line in sys.stdin:
    program, path = json.loads(line)
    sys.stdout.flush()
    if os.fork() == 0:
        sys.path[:0] = path
        try:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(program, {"__name__": "__main__"})
            answer = {"out": json.loads(out.getvalue())}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
        os._exit(0)
    os.wait()
"""


@contextmanager
def forks(imports):
    """Yield a function like ``run`` whose programs are forks of one process that has run ``imports``, most of their time.

    A system without forks runs each program in an interpreter of its own.
    """
    if not hasattr(os, "fork"):
        yield run
        return
    command = [sys.executable, "-c", _FORKS.replace("{imports}", imports)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def forked(program, *path):
            process.stdin.write(json.dumps([program, [*map(str, path)]]) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert "error" not in answer, answer["error"]
            return answer["out"]

        yield forked
        process.stdin.close()
