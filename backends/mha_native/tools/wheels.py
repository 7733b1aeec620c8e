"""Build wheels of mha-native for other systems with Zig's C++ compiler, and inspect them.

    python wheels.py FOLDER [TARGET ...]      # all targets by default

A wheel is accepted if its module needs no symbol of a C++ runtime, and no newer C library or system than its name says.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parent.parent
TARGETS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64.manylinux2014_aarch64",
    "x86_64-macos.11.0": "macosx_11_0_x86_64",
    "aarch64-macos.11.0": "macosx_11_0_arm64",
}
"""The platform tags for each of Zig's targets."""
TOOLS = {"cc": "cc -target {}", "c++": "c++ -target {}", "ar": "ar", "ranlib": "ranlib"}
SCRIPT = """#!/bin/sh
for word do  # Zig crashes when it links a bundle of macOS; Python loads a shared library just as well
    shift
    [ "$word" = -bundle ] && word=-shared
    set -- "$@" "$word"
done
exec {} "$@"
"""
FORBIDDEN = re.compile(r"_+(Z\w+|cxa_\w+|gxx_\w+)|GLIBCXX|libstdc|libc\+\+")
OWN = re.compile("mha|_GLOBAL__N_")  # namespaces of the module
LOAD_DYLIB, CODE_SIGNATURE, BUILD_VERSION = 0xC, 0x1D, 0x32  # commands of a Mach-O file


def main(folder: Path, targets: list[str]) -> None:
    if importlib.util.find_spec("jaxlib") is None:
        raise ModuleNotFoundError("jaxlib, whose headers the kernels for JAX need, is not installed", name="jaxlib")
    headers = python_headers(folder / "include")
    for target in targets:
        accepted = build(folder, target, headers)
        print(f"{accepted.name}: {accepted.stat().st_size // 1000} kB, {inspect(accepted, target)}")


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
        script.write_text(SCRIPT.format(f'"{sys.executable}" -m ziglang {command.format(target)}'), encoding="utf-8")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    settings = {
        "CMAKE_SYSTEM_NAME": "Darwin" if "macos" in target else "Linux",
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
    wrong = sorted(word for word in words if FORBIDDEN.fullmatch(word) and not OWN.search(word))
    if wrong:
        raise ValueError(f"{wheel.name} needs a C++ runtime: {', '.join(wrong)}")
    libraries, newest = needs_of_mach_o(module) if "macos" in target else needs_of_elf(module)
    named = tuple(map(int, re.findall(r"\d+", target)[-2:]))
    if newest > named:
        raise ValueError(f"{wheel.name} needs {libraries} {newest}; its name says {named}")
    return f"{name}, no C++ runtime, {libraries} {newest[0]}.{newest[1]}"


def needs_of_elf(module: bytes) -> tuple[str, tuple[int, ...]]:
    """Return the C library that a Linux module needs, and its version."""
    return "glibc", max(tuple(map(int, version.split(b"."))) for version in re.findall(rb"GLIBC_(\d+\.\d+)", module))


def needs_of_mach_o(module: bytes) -> tuple[str, tuple[int, ...]]:
    """Return the system that a macOS module needs, and its version. Raises ValueError for other libraries, or no signature."""
    magic, processor, _, _, count, _, _, _ = struct.unpack_from("<8I", module)
    if magic != 0xFEEDFACF:
        raise ValueError(f"the module begins with {magic:#x}, which is no 64-bit Mach-O file")
    at, commands = 32, {}
    for _ in range(count):
        command, size = struct.unpack_from("<2I", module, at)
        commands.setdefault(command & 0x7FFFFFFF, []).append(module[at : at + size])
        at += size
    libraries = [each[24:].rstrip(b"\0").decode() for each in commands[LOAD_DYLIB]]
    if libraries != ["/usr/lib/libSystem.B.dylib"]:
        raise ValueError(f"the module needs {', '.join(libraries)}")
    if processor == 0x0100000C and CODE_SIGNATURE not in commands:
        raise ValueError("the module has no signature, which arm64 requires")
    (build,) = commands[BUILD_VERSION]
    (version,) = struct.unpack_from("<I", build, 12)
    return "macOS", (version >> 16, version >> 8 & 0xFF)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(TARGETS))
