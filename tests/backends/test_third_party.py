"""Plugins of other distributions, installed as users install them: found, independent, and valid as long as api 1 is."""

import hashlib
import re
from importlib.metadata import entry_points

import needs
import numpy as np
import pytest
from programs import ARRAY_LIBRARIES, run
from project import INSTALLED, ROOT

import mha_core as mha
from mha_conformance import oracle
from mha_core.dispatch.backend import load
from mha_core.dispatch.registry import registry

pytestmark = needs.installed(
    *("mha_jax", "mha_mlx", "mha_dask", "mha_frozen_v1", "mha_frozen_v1_gradients", "mha_ndonnx", "jax", "mlx", "dask")
)
SOURCES = ROOT / "tests" / "third_party"
DISTRIBUTIONS = {
    "jax": ("mha-jax", "0.1.0", "backend caches int8 namespace ranks scan transforms"),
    "mlx": ("mha-mlx", "0.1.0", "namespace"),
    "dask": ("mha-dask", "0.1.0", "attention namespace"),
    "frozen_v1": ("mha-frozen-v1", "1.0.0", "arrays kernels"),
    "frozen_v1_gradients": ("mha-frozen-v1-gradients", "1.0.0", "arrays attention ranks states threads training"),
    "ndonnx": ("mha-ndonnx", "0.1.0", "arrays text"),
}
"""Names of plugins: their distribution, its version, and its modules besides the package's own."""


# installation


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_plugin_is_found_by_its_entry_point_with_its_distribution_and_version(name):
    distribution, version, _ = DISTRIBUTIONS[name]
    (entry,) = entry_points(group="mha_core.plugins", name=name)
    assert (entry.dist.name, entry.dist.version) == (distribution, version)
    row = next(row for row in mha.backends() if row.name == name)
    assert (row.distribution, row.version, row.state) == (distribution, version, "registered")
    module = next(plugin.module for plugin in registry().plugins if plugin.name == name)
    assert INSTALLED.as_posix() in module.__file__, "the plugin must be the installed one"


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_holds_the_plugin_alone(name):
    """The wheel that pip built to install the plugin, by the record of its files."""
    (entry,) = entry_points(group="mha_core.plugins", name=name)
    modules = {path.as_posix() for path in entry.dist.files if path.suffix == ".py"}
    assert entry.value == f"mha_{name}"
    assert modules == {f"mha_{name}/{module}.py" for module in ("__init__", *DISTRIBUTIONS[name][-1].split())}


@pytest.mark.parametrize("name", [pytest.param("mha_jax", marks=pytest.mark.full), "mha_mlx", "mha_dask", "mha_ndonnx"])
def test_the_python_of_the_plugin_s_readme_runs(name):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "backends" / name / "README.md").read_text("utf-8"), re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})


@pytest.mark.parametrize(("files", "most"), [("mha_jax/mha_jax/backend.py", 15), ("mha_mlx/mha_mlx/*.py", 120)])
def test_a_backend_takes_as_many_lines_as_its_page_says(files, most):
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "backends").glob(files)]
    assert 0 < sum(len(text.splitlines()) for text in texts) <= most


@pytest.mark.parametrize("name", ["jax", "mlx", "dask", "ndonnx"])
def test_a_library_that_is_missing_is_what_its_plugin_says_to_install(name):
    install = registry().backends[name][0].install
    assert re.fullmatch(rf"pip install '?{name}\b[^ ]*( onnxruntime)?", install)


# imports, each in its own process


PLUGINS = {"mha_jax", "mha_mlx", "mha_dask", "mha_frozen_v1", "mha_frozen_v1_gradients", "mha_ndonnx"}
"""Modules of the plugins, which are imported to list the backends."""


def libraries_after(code):
    program = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    later = {*ARRAY_LIBRARIES, "jaxlib", "mlx.core", "ndonnx", "onnxruntime", "spox"}
    later |= {
        "mha_dask.attention",
        "mha_frozen_v1.arrays",
        "mha_frozen_v1_gradients.arrays",
        "mha_ndonnx.arrays",
        "mha_mlx.namespace",
    }
    return set(run(program, INSTALLED)) & (PLUGINS | later)


IMPORTED = {
    "assert len(mha.backends()) >= 5": set(),
    "import numpy; x = numpy.ones((2, 4)); mha.scaled_dot_product_attention(x, x, x, mask=mha.causal())": {"numpy"},
    "mha.relu(mha.sinusoidal_positions(2, 4, backend='jax'))": {"numpy", "jax", "jaxlib"},
    "mha.relu(mha.sinusoidal_positions(2, 4, backend='dask'))": {"numpy", "dask", "array_api_compat"},
}


@pytest.mark.parametrize("code", IMPORTED)
def test_using_a_backend_imports_the_plugin_modules_and_no_other_library(code):
    imported = libraries_after(f"import mha_core as mha; {code}")
    assert imported - ({"cupy"} if "dask" in code else set()) == PLUGINS | IMPORTED[code]  # dask itself imports CuPy


# the plugins that are never edited; test_frozen_gradients.py is about the second


FROZEN = {
    "frozen_v1": "2513c023f61cd3b8a70aa2a278ac8218340373933d668fcd2081c0c526313442",
    "frozen_v1_gradients": "3fc1c8faba8b8ed1fa1cda5576d146321ec840173586984529797269d41042d4",
}


@pytest.mark.parametrize("name", FROZEN)
def test_a_frozen_plugin_is_not_edited(name):
    digest = hashlib.sha256()
    for path in sorted((SOURCES / name).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    assert digest.hexdigest() == FROZEN[name], (
        f"tests/third_party/{name} represents plugins that others wrote, so nobody edits it: undo the change, and fix core"
    )


@pytest.fixture
def frozen():
    return load("frozen_v1")


@pytest.fixture
def calls(frozen):
    """The log of the frozen kernels, empty before the test."""
    from mha_frozen_v1 import kernels

    kernels.calls.clear()
    return kernels.calls


def attend(backend, arrays, **options):
    state = mha.attention_state(*map(backend.from_numpy, arrays), **options)
    assert type(state.out).__name__ == type(state.lse).__name__ == "FrozenArray"
    return [backend.to_numpy(x) for x in state]


@pytest.fixture
def xyz(rng):
    return [rng.normal(size=(2, 3, 4, 5)).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("mask", [None, mha.causal()], ids=["plain", "causal"])
def test_the_frozen_kernel_takes_what_it_declares(frozen, calls, xyz, mask):
    out, lse = attend(frozen, xyz, mask=mask)
    assert calls == ["attention"]
    expected = oracle.attention(*xyz, allowed=None if mask is None else np.tri(4, dtype=bool))
    np.testing.assert_allclose(out, expected[0], atol=1e-6)
    np.testing.assert_allclose(lse, expected[1], atol=1e-6)
    assert out.dtype == lse.dtype == np.float32
    mha.scaled_dot_product_attention(*map(frozen.from_numpy, xyz), mask=mask)  # a call that needs no lse
    assert calls == ["attention"] * 2


def test_the_frozen_kernel_reads_the_offset_in_the_band(frozen, calls, xyz):
    query, key, value = xyz
    out, lse = attend(frozen, (query[..., :2, :], key, value), mask=mha.causal(), query_offset=-1)
    allowed = np.asarray([[0, 0, 0, 0], [1, 0, 0, 0]], dtype=bool)
    expected = oracle.attention(query[..., :2, :], key, value, allowed=allowed)
    np.testing.assert_allclose(out, expected[0], atol=1e-6)
    np.testing.assert_allclose(lse, expected[1], atol=1e-6)
    assert calls == ["attention"]


def test_the_frozen_kernel_refuses_float64_and_many_rows(frozen, calls, xyz, rng):
    wide = [x.astype(np.float64) for x in xyz]
    np.testing.assert_allclose(attend(frozen, wide)[0], oracle.attention(*wide)[0], atol=1e-14)
    long = rng.normal(size=(65, 4)).astype(np.float32)
    assert attend(frozen, (long, long, long))[0].shape == (65, 4)
    assert not calls


def test_the_frozen_gelu_takes_the_exact_form_only(frozen, calls, rng):
    x = rng.normal(size=(3, 4))
    for approximate, log in (("tanh", []), ("none", ["gelu"])):
        got = frozen.to_numpy(mha.gelu(frozen.from_numpy(x), approximate=approximate))
        np.testing.assert_allclose(got, mha.gelu(x, approximate=approximate), atol=1e-14)
        assert calls == log


def test_layers_reach_the_frozen_kernels(frozen, calls, rng):
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, activation="gelu", seed=0)
    x = rng.normal(size=(5, 8)).astype(np.float32)
    got = frozen.to_numpy(layer.to("frozen_v1")(frozen.from_numpy(x), mask=mha.causal()))
    np.testing.assert_allclose(got, layer(x, mask=mha.causal()), atol=1e-5)
    assert calls == ["attention", "gelu"]


def test_the_frozen_kernel_for_numpy_runs_only_on_demand(calls, rng):
    (kernel,) = (kernel for kernel in registry().kernels["numpy", "silu"] if kernel.name == "frozen_v1")
    assert kernel.opt_in and kernel.priority < 0
    for dtype in (np.float32, np.float64):
        x = rng.normal(size=(3, 4)).astype(dtype)
        expected = mha.silu(x)
        assert not calls
        with mha.use_kernel("silu", "frozen_v1"):
            got = mha.silu(x)
        assert calls.pop() == "silu"
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_the_reasons_of_the_frozen_kernels_are_reported(frozen, xyz):
    wide = [frozen.from_numpy(x.astype(np.float64)) for x in xyz]
    reasons = {rejection.kernel: rejection.reason for rejection in mha.explain("attention", *wide).rejected}
    assert reasons == {"rows": "takes no float64"}
    with pytest.raises(mha.KernelUnsupported, match="it takes no float64"), mha.use_kernel("attention", "rows"):
        mha.scaled_dot_product_attention(*wide)
    with pytest.raises(mha.KernelUnsupported, match="it computes the exact gelu only"), mha.use_kernel("gelu", "erf"):
        mha.gelu(wide[0], approximate="tanh")
