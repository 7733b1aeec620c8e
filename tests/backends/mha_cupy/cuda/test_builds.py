"""Compiled CUDA sources are kept in build/cuda: an unchanged source is not compiled again, a changed one is."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import cuda_builds
import cuda_on_host
import nvrtc
import pytest

DEFINES = ("DTYPE=float", "WIDE=float", "INTERLEAVED=0", "PACK=1")
KERNEL = {"source": "rotary.cu", "kernel": "rotary", "defines": DEFINES}


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The compilations so far. Both compilers are replaced by functions that only record them; nothing is kept at first."""
    compilations = []
    headers = tmp_path / "headers"
    headers.mkdir()
    for path in cuda_on_host.HERE.glob("*.h"):
        shutil.copy(path, headers)
    monkeypatch.setattr(cuda_builds, "FOLDER", tmp_path / "build")
    monkeypatch.setattr(cuda_on_host, "HERE", headers)
    monkeypatch.setattr(cuda_on_host, "SOURCES", shutil.copytree(cuda_on_host.SOURCES, tmp_path / "sources"))
    monkeypatch.setattr(cuda_on_host, "COMPILER", "c++")
    monkeypatch.setattr(cuda_on_host, "compiler_version", lambda: "version 1")

    def run_compiler(command, *, input, **options):
        compilations.append((command, input))
        Path(command[command.index("-o") + 1]).write_text("compiled")
        return SimpleNamespace(returncode=0)

    def run_nvrtc(source, options):
        compilations.append((source, options))
        return "log", "ptx"

    monkeypatch.setattr(cuda_on_host.subprocess, "run", run_compiler)
    monkeypatch.setattr(nvrtc, "_compile", run_nvrtc)
    return compilations


def on_host():
    return cuda_on_host.build(**KERNEL)


def by_nvrtc():
    return nvrtc.compiled(KERNEL["source"], KERNEL["defines"], "sm_90")


@pytest.mark.parametrize("build", [on_host, by_nvrtc])
def test_an_unchanged_source_is_compiled_once(compiled, build):
    assert build() == build() == build()
    assert len(compiled) == 1
    assert len(list(cuda_builds.FOLDER.iterdir())) == 1, "temporary files were left"


def append(path):
    path.write_text(path.read_text() + "// changed\n")


CHANGES = {
    on_host: {
        "source": lambda patch: append(cuda_on_host.SOURCES / "rotary.cu"),
        "included source": lambda patch: append(cuda_on_host.SOURCES / "numbers.cuh"),
        "header": lambda patch: append(cuda_on_host.HERE / "cuda_on_host.h"),
        "header that a header includes": lambda patch: append(cuda_on_host.HERE / "tiles.h"),
        "options": lambda patch: patch.setattr(cuda_on_host, "OPTIONS", ("-O2", *cuda_on_host.OPTIONS)),
        "compiler": lambda patch: patch.setattr(cuda_on_host, "compiler_version", lambda: "version 2"),
        "kernel": lambda patch: patch.setitem(KERNEL, "kernel", "other"),
        "define": lambda patch: patch.setitem(KERNEL, "defines", (*DEFINES, "EACH=1")),
    },
    by_nvrtc: {
        "source": lambda patch: patch.setattr(nvrtc, "text", lambda source: "changed"),
        "options": lambda patch: patch.setattr(nvrtc, "CUPY_OPTIONS", ()),
        "compiler": lambda patch: patch.setattr(nvrtc, "version", lambda package: "99"),
        "define": lambda patch: patch.setitem(KERNEL, "defines", (*DEFINES, "EACH=1")),
    },
}


@pytest.mark.parametrize(("build", "change"), [(build, name) for build, changes in CHANGES.items() for name in changes])
def test_what_has_changed_is_compiled_again(compiled, monkeypatch, build, change):
    build()
    CHANGES[build][change](monkeypatch)
    build()
    assert len(compiled) == 2


def test_a_file_is_kept_only_when_it_is_complete(compiled):
    def build(path):
        path.write_text("half")
        assert not list(cuda_builds.FOLDER.glob("*.txt"))
        raise RuntimeError("the compiler failed")

    with pytest.raises(RuntimeError, match="the compiler failed"):
        cuda_builds.kept(".txt", ["source"], build)
    assert list(cuda_builds.FOLDER.iterdir()) == []
    path = cuda_builds.kept(".txt", ["source"], lambda path: path.write_text("whole"))
    assert path.read_text() == "whole"


def test_the_text_that_is_hashed_holds_every_included_file():
    text = cuda_builds.with_includes('#include "flash.cu"\n#include "norms.cu"\n', [cuda_on_host.SOURCES])
    for kernel in ("flash(", "combine(", "normalize("):
        assert text.count(f" {kernel}\n") == 1
    assert text.count("struct bfloat16") == 1
    assert '#include "' not in text
