"""The conformance suite: our backends pass it, and a run that judges nothing fails."""

import ast
import sys

import needs
import numpy as np
import promised
import pytest
from project import INSTALLED, ROOT
from suite import FEW, SUITE, conform, mha_conform, one_line, run

import mha_core as mha
from mha_conformance.cases.features import ALL_FEATURES
from mha_conformance.cases.pieces import PIECES
from mha_conformance.oracle import tolerance
from mha_conformance.test_namespace import FUNCTIONS
from mha_core.plugin import ATTENTION_FEATURES

REGISTERED = [row.name for row in mha.backends() if row.state == "registered"]
"""Backends of all entry points: any other plugin that is installed is judged too."""
IN_FULL = ("numpy", "torch")
IN_PART = (
    "ndonnx",
)  # opens a session of ONNX Runtime for each operator: tests/backends/mha_ndonnx/test_export.py runs a part of the suite
MODULES = [path.stem for path in promised.SUITE]
SLOW = {
    "numpy": ("test_algebra", "test_covering", "test_gradients", "test_kernels", "test_layer_gradients"),
    "torch": ("test_algebra", "test_covering", "test_gradients", "test_kernels", "test_layer_gradients", "test_transforms"),
    "jax": (
        *("test_gradients", "test_layer_gradients"),
        *("test_algebra", "test_covering", "test_determinism", "test_half_precision", "test_layers", "test_promises"),
        *("test_refusals", "test_threads", "test_weights"),
    ),
}
"""Modules of the suite that take long on a backend: each is a separate test, so that pytest-xdist's workers can share them."""


IN_FLOAT32 = {"jax": [module for module in SLOW["jax"] if module != "test_half_precision"]}
"""Modules that compile for minutes on a backend, judged in float32 alone; its other modules are judged in all dtypes."""
CHOSEN = {
    "dask": (
        *("test_namespace", "test_imports", "test_promises", "test_inputs", "test_kernels", "test_covering"),
        *("test_half_precision", "test_determinism", "test_demanded", "test_memory"),
    ),
}
"""Modules that judge a backend whose every call takes milliseconds; its whole suite takes minutes, even the quick one."""


def parts(name):
    """Return groups of modules, which together are the whole suite, or those that are chosen."""
    if name in CHOSEN:
        return {"others": list(CHOSEN[name])}
    slow = SLOW.get(name, ())
    return {**{module: [module] for module in slow}, "others": [module for module in MODULES if module not in slow]}


REST = ("--quick", *(word for dtype in ("float64", "float16", "bfloat16") for word in ("--dtype", dtype)))
ROTATING = [pytest.mark.full, pytest.mark.rotating]
OTHERS = [name for name in dict.fromkeys((*REGISTERED, "jax", "dask", "frozen_v1")) if name not in (*IN_FULL, *IN_PART)]
RUNS = [
    *(
        pytest.param(name, part, ["--dtype", "float32"], marks=ROTATING, id=f"{name}-{part}")
        for name in IN_FULL
        for part in parts(name)
    ),
    *(pytest.param(name, None, [*REST], marks=ROTATING, id=f"{name}, other dtypes") for name in IN_FULL),
    *(pytest.param(name, "test_covering", [*FEW], id=f"{name}, quick") for name in IN_FULL),
    *(
        pytest.param(
            name,
            part,
            [*([*FEW] if part in IN_FLOAT32.get(name, ()) else ["--quick"]), "--part", "0.03"],
            marks=ROTATING,
            id=f"{name}-{part}",
        )
        for name in OTHERS
        for part in parts(name)
    ),
]
"""Covering designs, which hold each problem to many promises at once, judge the kernels of NumPy and torch every time. The rest
rotates: for NumPy and torch the whole suite in float32 and the quick one in other dtypes, for others the quick one. The
certificates in the documentation come from the whole suite in all dtypes."""


@pytest.mark.parametrize(("name", "part", "extent"), RUNS)
def test_every_installed_backend_conforms(name, part, extent, tmp_path):
    more = ["--plugin", "strict_plugin"] if name == "array_api_strict" else []
    modules = MODULES if part is None else parts(name)[part]
    suite = [*SUITE[:-1], *(f"{SUITE[-1]}.{module}" for module in modules)]
    done = conform(name, *extent, *more, cwd=tmp_path, suite=suite, path=[INSTALLED])
    if "NoDevice" in done.stderr:
        assert done.returncode == 4
        pytest.skip(f"{name} was not judged: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@needs.installed("mha_dask", "dask")
def test_the_kernel_for_dask_conforms_with_several_chunks(tmp_path):
    """Its plugin makes arrays of one chunk. Rows in which all keys have a bias of -1e30 are beyond states in float32."""
    options = [
        "--plugin",
        "chunked_dask",
        "--quick",
        "--part",
        "0.1",
        "-k",
        "blocks and (covering or promises) and not (test_3_ and (bias or product))",
    ]
    conform("dask", *options, cwd=tmp_path, path=[ROOT / "backends" / "mha_dask"], status=0)


@pytest.mark.full
def test_the_header_names_what_is_judged(tmp_path):
    done = mha_conform("numpy", "-k", "test_1", "--quick", "--seed", 7, "--dtype", "float32", cwd=tmp_path, status=0)
    assert f"judges backend numpy (numpy {np.__version__}), device default, float32; seed 7, quick" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_the_line_that_reproduces_a_failure_does(tmp_path):
    """The line is copied from the report and run with this Python's ``mha``."""
    options = ["--plugin", "wrong_plugins", "-k", "test_plain_attention", "--seed", 5, "--quick"]
    done = mha_conform("numpy", *options, cwd=tmp_path, MHA_WRONG="scores.scale_off", status=1)
    details = (tmp_path / "conform-numpy.txt").read_text(encoding="utf-8")
    line = next(line.strip() for line in done.stdout.splitlines() if line.startswith("    mha conform "))
    command = ["sh", "-c", line.replace("mha ", f"{sys.executable} -m mha_core ", 1)]
    again = run(command, cwd=tmp_path, MHA_WRONG="scores.scale_off", status=1)
    assert "1 failed" in again.stdout
    error = next(text for text in (tmp_path / "conform-numpy.txt").read_text().splitlines() if "times the bound" in text)
    assert error in details.splitlines()


@pytest.mark.full
@pytest.mark.parametrize("supports", ["'no_such_module:supports'", "lambda call: 1 / 0"], ids=["name", "function"])
def test_a_kernel_that_cannot_say_what_it_supports_is_found(supports, tmp_path):
    source = f"""
from mha_core.plugin import Kernel, hookimpl

@hookimpl
def mha_kernels():
    yield Kernel("numpy", "silu", "vague", 1, "math:sin", priority=9, supports={supports})
"""
    (tmp_path / "vague_plugin.py").write_text(source, encoding="utf-8")
    arguments = ["numpy", "--plugin", "vague_plugin", "-k", "silu-vague", "--dtype", "float32"]
    done = conform(*arguments, cwd=tmp_path, path=[tmp_path], status=1)
    assert "cannot say whether it supports the call: " in done.stdout


# errors of the command line


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nunpy"], "no backend is named 'nunpy'; did you mean 'numpy'? installed: "),
        (
            ["lame", "--plugin", "wrong_plugins.lame"],
            "No module named 'no_such_library'; install it with: pip install lame-library",
        ),
        (["torch", "--device", "cuda:7"], "device 'cuda:7' of backend 'torch' cannot be used"),
        (["numpy", "--device", "gpu"], "device 'gpu' of backend 'numpy' cannot be used"),
        (["numpy", "--dtype", "float8"], "backend 'numpy' has no floating dtype 'float8'"),
        (
            ["array_api_strict", "--plugin", "strict_plugin", "--dtype", "bfloat16"],
            "backend 'array_api_strict' has no floating dtype 'bfloat16'",
        ),
        (["numpy", "--plugin", "no_such_module"], "No module named 'no_such_module'"),
    ],
)
def test_a_missing_backend_device_or_dtype_is_an_error_of_one_line(arguments, message, tmp_path):
    one_line(conform(*arguments, cwd=tmp_path), 4, message)
    one_line(mha_conform(*arguments, cwd=tmp_path), 4, message)


@pytest.mark.full
def test_a_backend_must_be_named(tmp_path):
    one_line(run(SUITE, cwd=tmp_path), 4, "no backend is given; write --backend NAME")
    assert "--backend=NAME" in run(SUITE, "--help", cwd=tmp_path).stdout


@pytest.mark.full
@pytest.mark.parametrize("selection", ["no_such_test", "test_kernels and declared and attention-none"])
def test_a_selection_that_judges_nothing_is_an_error(selection, tmp_path):
    conform("numpy", "-k", selection, cwd=tmp_path, status=5)
    done = mha_conform("numpy", "-k", selection, cwd=tmp_path, status=5)
    assert f"error: nothing was tested: no test that matches -k {selection!r} applies to backend 'numpy'" in done.stderr


@pytest.mark.full
def test_a_run_in_which_every_test_is_skipped_is_an_error(tmp_path):
    done = conform("array_api_strict", "--plugin", "strict_plugin", "-k", "test_kernels.py", cwd=tmp_path, status=5)
    assert "nothing was judged" in done.stdout


# the user's pytest settings


@pytest.mark.full
def test_the_users_pytest_settings_are_ignored(tmp_path):
    """With other names of files and functions, doctests, and warnings as errors, the same tests are run."""
    chosen = ["-k", "test_1 or test_namespace", "--quick", "--dtype", "float64"]
    expected = conform("numpy", *chosen, cwd=tmp_path).stdout.splitlines()[-1].partition(" in ")[0]
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --doctest-modules --strict-markers -p no:cacheprovider\nfilterwarnings = error\n"
        "python_files = check_*.py\npython_functions = check_*\nempty_parameter_set_mark = fail_at_collect\n"
    )
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--mine')\n")
    done = conform("numpy", *chosen, cwd=tmp_path, status=0)
    assert done.stdout.splitlines()[-1].partition(" in ")[0] == expected
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not asked for')\n")
    mha_conform("numpy", *chosen, cwd=tmp_path, PYTEST_ADDOPTS="--no-such-option", status=0)


@pytest.mark.full
def test_the_suite_passes_with_xdist(tmp_path):
    done = conform("numpy", "-n", 2, "-k", "test_promises", "--quick", "--dtype", "float32", cwd=tmp_path, status=0)
    assert " passed" in done.stdout


# completeness


def test_every_function_that_core_calls_is_in_the_namespace_test():
    called = set()
    for path in [*(ROOT / "mha_core").rglob("*.py"), *(ROOT / "text").rglob("*.py")]:
        if not {"conformance", "autodiff"} & {*path.parts}:  # the rules of autodiff call what users call
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute):
                    owner = node.value
                    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
                    called |= {node.attr} if name == "xp" else set()
    elsewhere = {"__name__", "float32", "float64", "uint32", "finfo", "iinfo", "isdtype"}  # other tests cover these
    of_recorded_arrays = {"kind", "record"}
    assert called - elsewhere - of_recorded_arrays <= set(FUNCTIONS)


def test_every_feature_that_core_can_name_is_tried():
    from sample_kernels import FEATURES as NAMED

    assert set(NAMED) <= ALL_FEATURES


def test_every_operation_that_asks_for_a_kernel_is_tried():
    from sample_kernels import OPERATIONS

    assert {name.partition(" ")[0] for name in OPERATIONS} == set(PIECES)


def test_a_weights_kernel_without_gradient_is_not_asked_for_that_of_a_bias(installed):
    """As for attention: arrays inside a mask or bias may require a gradient."""
    torch = pytest.importorskip("torch")
    from sample_kernels import a_kernel

    handles = ATTENTION_FEATURES - {"lse", "value_dim"}
    installed(a_kernel("attention_weights", backend="torch", load="sample_kernels:absent", handles=handles))
    x, bias = torch.randn(2, 3, 4), torch.zeros(3, 3, requires_grad=True)
    mha.attention_weights(x, x, bias=bias)[0, 0, 0].backward()
    assert (bias.grad != 0).any()


# bounds


def test_the_bound_is_tight_enough_to_see_one_percent_of_scale_and_loose_enough_for_rounding(rng):
    query, key, value = (rng.normal(size=(2, 3, n, 16)) for n in (6, 9, 9))
    for dtype in ("float16", "float32", "float64"):
        arrays = [x.astype(dtype).astype(np.float64) for x in (query, key, value)]
        exact = tolerance.exact_attention(*arrays, dtype=dtype)
        tolerance.assert_within("out", exact.out.astype(dtype), exact.out, exact.out_bound)
        off = tolerance.exact_attention(*arrays, dtype=dtype, scale=0.25 * 1.01)
        if dtype != "float16":
            with pytest.raises(AssertionError, match="times the bound"):
                tolerance.assert_within("out", off.out, exact.out, exact.out_bound)
        with pytest.raises(AssertionError, match="times the bound"):
            tolerance.assert_within("lse", off.lse, exact.lse, exact.lse_bound)
    nan = np.where(exact.out == exact.out[0, 0, 0, 0], np.nan, exact.out)
    with pytest.raises(AssertionError, match=r"out\[0, 0, 0, 0\] is nan"):
        tolerance.assert_within("out", nan, exact.out, exact.out_bound)
    with pytest.raises(AssertionError, match="has shape"):
        tolerance.assert_within("out", exact.out[..., :1], exact.out, exact.out_bound)
