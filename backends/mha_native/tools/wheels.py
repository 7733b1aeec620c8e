"""Build wheels of mha-native for other systems with Zig's C++ compiler, and inspect them.

    python wheels.py FOLDER [TARGET ...]      # all targets by default

A wheel is accepted if its module needs no symbol of a C++ runtime, and no newer C library than its name says.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parent.parent
TARGETS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64.manylinux2014_aarch64",
}
"""The platform tags for each of Zig's targets. For macOS the sources compile, but Zig 0.13 to 0.17 crash when linking."""
TOOLS = {"cc": "cc -target {}", "c++": "c++ -target {}", "ar": "ar", "ranlib": "ranlib"}
FORBIDDEN = re.compile(r"_Z\w+|__cxa_\w+|__gxx_\w+|GLIBCXX|libstdc|libc\+\+")


def main(folder: Path, targets: list[str]) -> None:
    headers = python_headers(folder / "include")
    for target in targets:
        found = build(folder, target, headers)
        print(f"{found.name}: {found.stat().st_size // 1000} kB, {inspect(found, target)}")


def python_headers(to: Path) -> Path:
    """Copy Python's headers, with one pyconfig.h: Debian's includes another file for each processor."""
    shutil.copytree(sysconfig.get_paths()["include"], to, dirs_exist_ok=True)
    shutil.copyfile(sysconfig.get_config_h_filename(), to / "pyconfig.h")
    return to


def build(folder: Path, target: str, headers: Path) -> Path:
    """Return the wheel for a target, named after its platform."""
    there = (folder / target).absolute()
    shutil.rmtree(there, ignore_errors=True)
    there.mkdir(parents=True)
    for name, command in TOOLS.items():
        script = there / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {command.format(target)} "$@"\n', encoding="utf-8")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": target.partition("-")[0],
        "CMAKE_C_COMPILER": there / "cc",
        "CMAKE_CXX_COMPILER": there / "c++",
        "CMAKE_AR": there / "ar",
        "CMAKE_RANLIB": there / "ranlib",
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",
        "Python_INCLUDE_DIR": headers.absolute(),
    }
    options = [option for name, value in settings.items() for option in ("-C", f"cmake.define.{name}={value}")]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", there]
    subprocess.run([*command, *options, SOURCE], check=True, env=os.environ | {"ZIG_LOCAL_CACHE_DIR": str(there / "cache")})
    (made,) = there.glob("*.whl")
    options = ["--platform-tag", TARGETS[target], "--remove", made]
    subprocess.run([sys.executable, "-m", "wheel", "tags", *options], check=True, stdout=subprocess.DEVNULL)
    (made,) = there.glob("*.whl")
    return Path(shutil.copy(made, folder))


def inspect(wheel: Path, target: str) -> str:
    """Return what the module of a wheel needs; raise ValueError if a system of its kind may lack it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if "/_native." in name and not name.endswith(".pyi"))
        module = archive.read(name)
    words = {word.decode() for word in re.findall(rb"[A-Za-z_][\w.]{3,}", module)}
    wrong = sorted(word for word in words if FORBIDDEN.fullmatch(word) and "mha" not in word)
    if wrong:
        raise ValueError(f"{wheel.name} needs a C++ runtime: {', '.join(wrong)}")
    versions = {tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_(\d+\.\d+)", module)}
    newest, named = max(versions), tuple(map(int, re.findall(r"\d+", target)[-2:]))
    if newest > named:
        raise ValueError(f"{wheel.name} needs glibc {newest}; its name says {named}")
    return f"{name}, no C++ runtime, glibc {newest[0]}.{newest[1]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(TARGETS))
