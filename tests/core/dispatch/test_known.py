"""What messages say of this project's distributions that are not installed."""

import importlib.metadata
import importlib.util
import json
import pickle
import re
import tomllib

import numpy as np
import pytest
from programs import run
from project import ROOT
from sample_kernels import Plugin, a_kernel, registered
from together import for_each

import mha_core as mha
from mha_core.dispatch import known
from mha_core.dispatch.backend import load


@pytest.mark.parametrize("name", known.distributions())
def test_the_command_installs_this_distribution(name):
    entry = known.distributions()[name]
    folder, extra = re.fullmatch(r"pip install '?(\.[\w/]*)(?:\[(\w+)\])?'?", entry["install"]).groups()
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == name
    assert extra is None or extra in project["optional-dependencies"]
    if "backend" in entry:
        assert entry["backend"] in project["entry-points"]["mha_core.plugins"]


@pytest.fixture(scope="module")
def messages():
    """What calls say in a fresh process in which neither torch nor CuPy is installed."""
    return run(PROGRAM)


PROGRAM = """
import json, os, sys
sys.modules["torch"] = sys.modules["cupy"] = None  # neither find_spec nor import finds them
import mha_core as mha

def message(name=None, variable=""):
    os.environ["MHA_BACKEND"] = variable
    try:
        mha.sinusoidal_positions(2, 4, backend=name)
    except mha.MhaError as error:
        return f"{type(error).__name__}: {error}"

class ArrayImpl:
    __module__ = "jaxlib._jax"

try:
    mha.relu(ArrayImpl())
except TypeError as error:
    messages = {"array": str(error)}
messages |= {name: message(name) for name in ("troch", "qqq", "torch", "jax")}
messages |= {f"MHA_BACKEND={name}": message(variable=name) for name in ("troch", "torch", "jax")}
print(json.dumps(messages))
"""
LISTING = (
    "installed: numpy; not installed: cupy (pip install 'mha-core[cupy]'), dask (pip install ./backends/mha_dask), "
    "jax (pip install ./backends/mha_jax), mlx (pip install ./backends/mha_mlx), ndonnx (pip install ./backends/mha_ndonnx), "
    "torch (pip install 'mha-core[torch]'), paths in a checkout of mha-core"
)
TROCH = f"no backend is named 'troch'; did you mean 'torch'? {LISTING}"
TORCH = (
    f"backend 'torch' (from mha-core {mha.__version__}) cannot be used: ModuleNotFoundError: "
    "import of torch halted; None in sys.modules; install it with: pip install 'mha-core[torch]'"
)
JAX = "backend 'jax' is not installed: pip install ./backends/mha_jax, in a checkout of mha-core"
MESSAGES = {
    "troch": f"UnknownBackend: {TROCH}",
    "qqq": f"UnknownBackend: no backend is named 'qqq'; {LISTING}",
    "torch": f"BackendUnavailable: {TORCH}",
    "jax": f"UnknownBackend: {JAX}",
    "array": f"x is jaxlib._jax.ArrayImpl; {JAX}",
    "MHA_BACKEND=troch": f"UnknownBackend: MHA_BACKEND is 'troch': {TROCH}",
    "MHA_BACKEND=torch": f"BackendUnavailable: MHA_BACKEND is 'torch': {TORCH}",
    "MHA_BACKEND=jax": f"UnknownBackend: MHA_BACKEND is 'jax': {JAX}",
}


@pytest.mark.parametrize("asked", MESSAGES)
def test_a_backend_that_cannot_be_used_is_answered_with_the_command_that_installs_it(messages, asked):
    assert messages[asked] == MESSAGES[asked]


def test_a_closest_match_may_be_a_backend_that_is_not_installed():
    with pytest.raises(mha.UnknownBackend, match=r"no backend is named 'jaxx'; did you mean 'jax'\? installed: "):
        mha.sinusoidal_positions(2, 4, backend="jaxx")


# kernels


HERE = "`mha bench --here` says what it would bring on this machine"
NATIVE = "is not installed: pip install ./backends/mha_native, in a checkout of mha-core"


def test_kernels_that_are_not_installed_are_named_once_with_the_backends_of_the_calls_that_they_compute():
    calls = [("torch", "attention"), ("numpy", "linear_int8"), ("torch", "linear_int8"), ("jax", "gelu"), ("cupy", "attention")]
    assert [*known.advice_on_kernels(calls)] == [f"mha-native, with kernels for torch and numpy, {NATIVE}; {HERE}"]
    assert known.absent("jax") == known.absent("jax", "attention") == ["mha-native"]
    for backend, op in [("jax", "linear_int8"), ("numpy", "gelu"), ("cupy", ""), ("qqq", "")]:
        assert known.absent(backend, op) == [], (backend, op)


def test_the_command_that_measures_is_named_with_its_distribution_where_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])
    (line,) = known.advice_on_kernels([("numpy", "attention")])
    assert line.endswith(f"{HERE}, once mha-conformance is installed: pip install './conformance[report]'")


def test_kernels_that_are_installed_are_not_named():
    with registered(Plugin([a_kernel()]), "mha_native"):
        assert known.absent("numpy") == [] == [*known.advice_on_kernels([("numpy", "attention")])]


def test_known_kernels_are_those_of_the_plugin():
    """It also has kernels of smaller operations and of layers, which are not named."""
    source = ROOT / "backends" / "mha_native" / "mha_native" / "__init__.py"
    spec = importlib.util.spec_from_file_location("mha_native_source", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entry = known.distributions()["mha-native"]
    declared = {(kernel.backend, kernel.op) for kernel in module.mha_kernels() if kernel.name == entry["kernel"]}
    operations = {op for _, op in declared if op.startswith("attention") or op == "linear_int8"}
    assert {(backend, op) for backend, ops in entry["kernels"].items() for op in ops} == {
        (backend, op) for backend, op in declared if op in operations
    }


CASE = "attention 8x8x512x64"


def test_the_known_shares_of_the_product_rate_are_those_that_were_measured():
    pages = [json.loads(file.read_text(encoding="utf-8")) for file in sorted((ROOT / "docs" / "peers").glob("*.json"))]
    entry = known.distributions()["mha-native"]
    rows = [row for page in pages for row in page["rows"] if (row["case"], row["of"]) == (CASE, "matrix rate")]
    for name, least in entry["reached"].items():
        assert least == round(min(row["reached"] for row in rows if row["backend"] == f"{name}+native"), 2)
    assert {page["machine"]["system"].split()[-1] for page in pages} <= set(entry["measured_on"])


# devices


def layer(**options):
    return mha.FeedForward.init(d_model=2, d_ff=2, seed=0, **options)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "backend 'numpy' has no device 'cuda': write backend='torch', device='cuda'"),
        ("cuda:1", "backend 'numpy' has no device 'cuda:1': write backend='torch', device='cuda:1'"),
        ("moon", "backend 'numpy' has no device 'moon': Device not understood. Only \"cpu\" is allowed, but received: moon"),
    ],
)
def test_a_device_that_the_library_lacks_is_answered_with_a_backend_that_has_it(device, message, tmp_path):
    layer().save(tmp_path / "layer.safetensors")
    for call in (
        lambda: layer(device=device),
        lambda: layer().to("numpy", device=device),
        lambda: mha.FeedForward.load(tmp_path / "layer.safetensors", device=device),
        lambda: mha.sinusoidal_positions(2, 4, device=device),
        lambda: mha.rotary_tables(2, 4, device=device),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$") as error:
            call()
        assert isinstance(error.value, mha.MhaError)
    copied = pickle.loads(pickle.dumps(error.value))  # as an error of another process arrives
    options = re.sub("backend='(.*)', device='(.*)'", r"--backend \1 --device \2", message)
    assert (str(copied), copied.in_command) == (message, options)


def test_a_device_in_place_of_a_backend_is_called_a_device():
    for device, backends in {"cuda": "'torch'", "cpu": "'numpy' or 'torch'"}.items():
        message = f"no backend is named {device!r}, which is a device: write backend={backends}, device={device!r}"
        with pytest.raises(mha.UnknownBackend) as error:
            layer().to(device)
        assert str(error.value) == message


def test_gpu_is_called_by_the_name_that_torch_has_for_it():
    with pytest.raises(mha.UnknownBackend, match=r"'gpu', which is a device: write backend='torch', device='cuda'$"):
        layer().to("gpu")
    with pytest.raises(ValueError, match=r"backend 'numpy' has no device 'gpu': write backend='torch', device='cuda'$"):
        layer().to("numpy", device="gpu")


def test_what_is_no_name_of_a_backend_is_answered_with_what_to_write():
    torch = pytest.importorskip("torch")
    expected = "; expected the name of a backend"
    cases = {
        f"backend is the module torch{expected}, such as 'torch'": torch,
        f"backend is torch.float16{expected}, such as 'torch'; write dtype='float16' after the name": torch.float16,
        f"backend is <class 'numpy.float32'>{expected}, such as 'numpy'; write dtype='float32' after the name": np.float32,
        f"backend is dtype('float64'){expected}, such as 'numpy'; write dtype='float64' after the name": np.dtype("float64"),
        f"backend is device(type='cpu'){expected}, such as 'torch'; a device is written as device=": torch.device("cpu"),
        f"backend is the module re{expected}": re,
        "no backend is named 'float16', which is a dtype: write dtype='float16' after the name of a backend": "float16",
    }

    def check(message):
        with pytest.raises(mha.UnknownBackend) as error:
            layer().to(cases[message])
        assert str(error.value) == message

    for_each({message: message for message in cases}, check)


def test_the_library_says_why_it_lacks_a_device_of_a_kind_that_it_supports():
    torch = pytest.importorskip("torch")
    device = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ValueError, match=f"^backend 'torch' has no device '{device}': (?!write)."):
        layer(backend="torch", device=device)


@pytest.mark.parametrize(
    "backend", [backend for entry in known.distributions().values() for backend in entry.get("devices", ())]
)
def test_devices_are_those_that_the_library_names(backend):
    mha.sinusoidal_positions(2, 4, backend=backend)
    kinds = {str(device).partition(":")[0] for device in load(backend).record.devices()}
    assert kinds <= {kind for entry in known.distributions().values() for kind in entry.get("devices", {}).get(backend, ())}
