"""The suite's pytest plugin: options, fixtures, and collection that does not depend on the user's pytest settings.

    pytest -p mha_conformance.plugin --pyargs mha_conformance --backend NAME

pytest does not read a conftest inside a package under ``--pyargs``, so this plugin takes its place.
"""

from __future__ import annotations

import argparse
import importlib
import zlib
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mha_core
from mha_core import MhaError
from mha_core.plugin import Kernel, register
from mha_core.shared import FEATURES, LAYER_VJPS, VJPS, registry

from .backend import BackendUnderTest, CannotJudge
from .cases.layer_axes import LAYERS
from .cases.pieces import PIECES
from .find import find
from .judge.held import Judge, judge_of
from .probes.computed_by import ComputedBy
from .report.counts import TO_REPRODUCE, attach_evidence, describe
from .report.evidence import evidence
from .report.reporter import Reporter, command

HERE = Path(__file__).parent
_BACKEND = pytest.StashKey[BackendUnderTest]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mha-core conformance")
    group.addoption("--backend", metavar="NAME", help="the backend to judge, one that `mha backends` lists")
    group.addoption("--device", metavar="D", help="one of the backend's devices; by default, the backend chooses")
    group.addoption("--dtype", metavar="T", action="append", help="judge only this dtype; repeatable")
    group.addoption("--quick", action="store_true", help="fewer problems of each kind")
    group.addoption("--part", metavar="S", type=_part, default=1.0, help="judge only this part of each covering design")
    group.addoption("--seed", metavar="N", type=int, default=0, help="seed of the random problems, default 0")
    group.addoption("--report", metavar="DIR", help="write a certificate to DIR: NAME[-DEVICE].json, .md and .svg")
    group.addoption("--details", metavar="FILE", help="write the tracebacks of tests that failed to FILE")
    group.addoption(
        "--plugin", metavar="MODULE", action="append", default=[], help="register a module that is not installed; repeatable"
    )


def _part(text: str) -> float:
    part = float(text)
    if not 0 < part <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a part of a design; write a number above 0 and at most 1")
    return part


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(number, ...): which promises of mha-core a conformance test checks")
    if config.getoption("help") or config.getoption("version"):
        return
    if config.getoption("backend") is None:
        raise pytest.UsageError("no backend is given; write --backend NAME, one that `mha backends` lists")
    try:
        for module in config.getoption("plugin"):
            register(importlib.import_module(module))
        config.stash[_BACKEND] = backend = find(
            *(config.getoption(name) for name in ("backend", "device", "dtype")),
            **{name: config.getoption(name) for name in ("quick", "part", "seed")},
            plugins=tuple(config.getoption("plugin")),
        )
        if not hasattr(config, "workerinput"):  # a pytest-xdist worker sends its reports to the main process
            config.pluginmanager.register(Reporter(config, backend, kernels_of(backend.name)), "mha-core conformance report")
    # TypeError, ValueError: a plugin that breaks the contract
    except (MhaError, CannotJudge, ImportError, TypeError, ValueError) as error:
        raise pytest.UsageError(" ".join(str(error).split())) from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    backend = config.stash.get(_BACKEND, None)
    if backend is None:
        return []
    record = backend.loaded.record
    versions = ", ".join(f"{name} {version}" for name, version in (record.versions() if record.versions else {}).items())
    seed = f"seed {backend.seed}{', quick' * backend.quick}"
    library = f"mha-core {mha_core.__version__} judges backend {backend.name} ({versions or 'versions unknown'})"
    lines = [f"{library}, device {backend.device or 'default'}, {', '.join(backend.dtypes)}; {seed}"]
    if isinstance(backend.on_host, str):
        lines.append(f"memory is not judged: {backend.on_host}")
    return lines


# The user's own pytest settings may name other files and functions, run doctests, or turn warnings into errors;
# the following class and hooks override them.


class Module(pytest.Module):
    """A test module of this suite: its tests are the functions named ``test_*``, whatever the settings say."""

    def funcnamefilter(self, name: str) -> bool:
        return name.startswith("test_")

    def classnamefilter(self, name: str) -> bool:
        return False


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Any, Any]:
    result = yield
    if HERE not in file_path.parents:
        return result
    is_test = file_path.parent == HERE and file_path.name.startswith("test_")
    return [Module.from_parent(parent, path=file_path)] if is_test else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path != HERE / "test_namespace.py")  # what all others depend on comes first
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.filterwarnings("default", "error::mha_core.KernelWarning"))  # a broken kernel fails
            describe(item)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.parent != HERE:
        return
    backend = metafunc.config.stash[_BACKEND]
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", backend.dtypes_in(metafunc.definition.path.stem, metafunc.function.__name__))
    for name, operations in KERNELS_OF.items():
        if name in metafunc.fixturenames:
            kernels = [kernel for kernel in kernels_of(backend.name) if kernel.op in operations]
            none = pytest.param(None, id="none", marks=pytest.mark.skip(f"no such kernel is registered for {backend.name}"))
            metafunc.parametrize(name, [pytest.param(k, id=f"{k.op}-{k.name}".replace(" ", "_")) for k in kernels] or [none])
    for name, operations in OPERATIONS_BY.items():
        if name in metafunc.fixturenames:
            every = [by for op in operations for by in ways_to_compute(backend.name, op)]
            names = [f"{by.op}-{by}".replace(" ", "_") for by in every]
            metafunc.parametrize(name, every, ids=names)


KERNELS_OF: dict[str, tuple[str, ...]] = {
    "attention_kernel": ("attention",),
    "weights_kernel": ("attention_weights",),
    "vjp_kernel": ("attention_vjp",),
    "piece_vjp_kernel": VJPS,
    "layer_vjp_kernel": LAYER_VJPS,
    "piece_kernel": PIECES,
    "layer_kernel": LAYERS,
    "update_kernel": ("adamw",),
}
"""The operations whose kernels an argument of a test stands for."""
OPERATIONS_BY: dict[str, tuple[str, ...]] = {
    "attention_by": ("attention",),
    "weights_by": ("attention_weights",),
    "vjp_by": ("attention_vjp",),
    "piece_by": PIECES,
    "update_by": ("adamw",),
    "layer_by": tuple(op for op in LAYERS if "mask" in FEATURES[op]),
}
"""The operations that an argument of a test stands for: ``probes.computed_by``."""


def ways_to_compute(backend: str, op: str) -> list[ComputedBy]:
    """Return what is chosen, each kernel and, if there are kernels, the algebra, which is chosen where there are none."""
    kernels = [ComputedBy(op, kernel) for kernel in kernels_of(backend) if kernel.op == op]
    return [ComputedBy(op), *kernels, *([ComputedBy(op, algebra=True)] if kernels else [])]


def kernels_of(backend: str) -> list[Kernel]:
    """Return every kernel that any plugin registers for this backend."""
    return [kernel for (owner, _), kernels in sorted(registry().kernels.items()) for kernel in kernels if owner == backend]


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config) -> BackendUnderTest:
    """The backend under test."""
    return pytestconfig.stash[_BACKEND]


@pytest.fixture
def rng(request: pytest.FixtureRequest, backend: BackendUnderTest) -> np.random.Generator:
    """Random numbers that depend only on ``--seed`` and the name of the test."""
    return np.random.default_rng([backend.seed, zlib.crc32(request.node.name.encode())])


@pytest.fixture
def judge(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> Judge:
    """The judge of the backend in each dtype."""
    return judge_of(backend, dtype, rng)


@pytest.fixture
def first(backend: BackendUnderTest, rng: np.random.Generator) -> Judge:
    """The judge of the backend in its first dtype."""
    return judge_of(backend, backend.dtype, rng)


def _judge_in(name: str, *dtypes: str) -> Any:
    """Return a fixture: the judge of the backend in the first of these dtypes that is judged."""

    @pytest.fixture(name=name)
    def fixture(backend: BackendUnderTest, rng: np.random.Generator) -> Judge:
        dtype = next((dtype for dtype in dtypes if dtype in backend.dtypes), None)
        if dtype is None:
            pytest.skip(f"judged only in {' and '.join(dtypes)}")
        return judge_of(backend, dtype, rng)

    return fixture


float32, wide = _judge_in("float32", "float32"), _judge_in("wide", "float64", "float32")


# A test's report carries the evidence that it recorded and the command that reproduces its failure; report/ does the rest.


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    given: dict[str, Any] = getattr(item, "funcargs", {})
    evidence.begin(given.get("dtype") or (given["wide"].dtype if "wide" in given else None))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Prefer the kernel of ``attention_by``, ``weights_by``, ``vjp_by``, ``piece_by`` and so on while the test runs."""
    ours = pyfuncitem.path.parent == HERE
    with ExitStack() as stack:
        for name in OPERATIONS_BY if ours else ():
            by = pyfuncitem.funcargs.get(name)
            if isinstance(by, ComputedBy):
                stack.enter_context(by.preferred())
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    ours = item.path.parent == HERE
    if ours and call.when == "call":
        attach_evidence(item)
    report = yield
    if report.failed and ours:
        report.sections.append((TO_REPRODUCE, command(item.config, item.config.stash[_BACKEND], item.name)))
    return report
