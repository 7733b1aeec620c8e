"""Compile CUDA sources as CuPy does, but without a GPU, with the NVRTC of the package nvidia-cuda-nvrtc."""

import ctypes
import importlib.util
import json
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path

import cuda_builds

from mha_cupy.launch import text

# options that cupy.RawKernel (CuPy 14.2) adds to those of mha_cupy.launch
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")


@cache
def library():
    folders = importlib.util.find_spec("nvidia").submodule_search_locations
    (path,) = (path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.*"))
    return ctypes.CDLL(str(path))


def compiled(source, defines, arch):
    """Return the log of NVRTC and ptxas, and the PTX. Raises AssertionError with the log if the source does not compile."""
    options = ["--std=c++17", *(f"-D{define}" for define in defines), *CUPY_OPTIONS, f"-arch={arch}", "--ptxas-options=-v"]
    inputs = [text(source), source, *options, version("nvidia-cuda-nvrtc")]
    path = cuda_builds.kept(".json", inputs, lambda path: path.write_text(json.dumps(_compile(source, options)), "utf-8"))
    log, ptx = json.loads(path.read_text("utf-8"))
    return log, ptx


def _compile(source, options):
    nvrtc, program = library(), ctypes.c_void_p()
    c_options = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text(source).encode(), source.encode(), 0, None, None) == 0
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), c_options)
        log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        assert status == 0, log
        return log, _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def spills(log):
    """Return how many bytes each kernel of a source spills, stores and loads together, by kernel name."""
    parts = re.split(r"Compiling entry function '(\w+)'", log)[1:]
    bytes_of = {
        name: [int(n) for n in re.findall(r"(\d+) bytes spill", lines)] for name, lines in zip(*[iter(parts)] * 2, strict=True)
    }
    assert bytes_of and all(len(numbers) == 2 for numbers in bytes_of.values()), log
    return {name: sum(numbers) for name, numbers in bytes_of.items()}


def _text(program, size_of, get):
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert get(program, buffer) == 0
    return buffer.value.decode()


def assert_compiled(launches, arch):
    """Compile what is launched; fail for warnings, for kernels that the source lacks, and for registers that spill."""
    kernels = {}
    for launch in launches:
        kernels.setdefault((launch.source, launch.defines), set()).add(launch.kernel)
    for (source, defines), launched in kernels.items():
        log, _ = compiled(source, defines, arch)
        assert not re.search("warning|error", log), log
        spilled = spills(log)
        assert launched <= set(spilled), "a kernel that is launched is not in the source"
        assert not any(spilled.values()), (source, defines, log)
