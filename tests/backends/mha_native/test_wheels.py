"""Wheels of the compiled plugin are inspected before they are accepted; the compiler that builds them is not needed here."""

import importlib.util
import struct
import zipfile

import pytest
from project import ROOT

pytestmark = pytest.mark.rotating
SPEC = importlib.util.spec_from_file_location("wheels", ROOT / "backends" / "mha_native" / "tools" / "wheels.py")
wheels = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(wheels)
SYSTEM = "/usr/lib/libSystem.B.dylib"
MAC, LINUX = "aarch64-macos.11.0", "x86_64-linux-gnu.2.17"


def mach_o(*libraries, version=(11, 0), signed=True, words=b""):
    """Return a file with the commands that the inspection reads."""
    commands = [struct.pack("<6I", wheels.BUILD_VERSION, 24, 1, version[0] << 16 | version[1] << 8, 0, 0)]
    for library in libraries:
        name = library.encode().ljust(len(library) + 8 - len(library) % 8, b"\0")
        commands.append(struct.pack("<6I", wheels.LOAD_DYLIB, 24 + len(name), 24, 0, 0, 0) + name)
    if signed:
        commands.append(struct.pack("<4I", wheels.CODE_SIGNATURE, 16, 0, 0))
    return struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 8, len(commands), 0, 0, 0) + b"".join(commands) + words


def wheel(folder, module):
    path = folder / "mha_native-0.1.0-cp311-abi3-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mha_native/_native.abi3.so", module)
    return path


def test_without_the_headers_for_jax_none_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="jaxlib, whose headers the kernels for JAX need, is not installed"):
        wheels.main(tmp_path, [LINUX])


@pytest.mark.parametrize(
    ("target", "module", "message"),
    [
        (MAC, mach_o(SYSTEM), "macOS 11.0"),
        (MAC, mach_o(SYSTEM, words=b"__ZN3mha6attend\0__ZN12_GLOBAL__N_14planEv\0"), "macOS 11.0"),
        (LINUX, b"GLIBC_2.14\0GLIBC_2.2.5\0_ZN3mha6attend\0", "glibc 2.14"),
    ],
)
def test_a_wheel_that_needs_only_the_system_is_accepted(tmp_path, target, module, message):
    assert wheels.inspect(wheel(tmp_path, module), target) == f"mha_native/_native.abi3.so, no C++ runtime, {message}"


@pytest.mark.parametrize(
    ("target", "module", "message"),
    [
        (
            MAC,
            mach_o(SYSTEM, "/usr/lib/libc++.1.dylib"),
            r"the module needs /usr/lib/libSystem.B.dylib, /usr/lib/libc\+\+.1.dylib$",
        ),
        (MAC, mach_o(SYSTEM, words=b"___cxa_throw\0"), r"needs a C\+\+ runtime: ___cxa_throw$"),
        (MAC, mach_o(SYSTEM, "/opt/lib/libomp.dylib"), "the module needs /usr/lib/libSystem.B.dylib, /opt/lib/libomp.dylib$"),
        (MAC, mach_o(SYSTEM, version=(13, 0)), r"needs macOS \(13, 0\); its name says \(11, 0\)$"),
        (MAC, mach_o(SYSTEM, signed=False), "the module has no signature, which arm64 requires$"),
        (MAC, b"\x7fELF" + bytes(60), "which is no 64-bit Mach-O file$"),
        (LINUX, b"GLIBC_2.34\0", r"needs glibc \(2, 34\); its name says \(2, 17\)$"),
        (LINUX, b"GLIBC_2.14\0__cxa_begin_catch\0", r"needs a C\+\+ runtime: __cxa_begin_catch$"),
    ],
)
def test_a_wheel_that_a_system_may_not_load_is_refused(tmp_path, target, module, message):
    with pytest.raises(ValueError, match=message):
        wheels.inspect(wheel(tmp_path, module), target)
