"""The suite judges every kernel by name, prepared calls, conversions, ``parallel``, and kernels of every operation.

Each plugin below has one fault, or none, and is judged in a process of its own.
"""

import pytest

from test_conformance import conform

pytestmark = pytest.mark.full

ATTENTION = """
from dataclasses import replace
import numpy as np
from mha_core.plugin import ATTENTION_FEATURES, AttentionState, Kernel, hookimpl
from wrong_plugins.dense import Dense, mask, right

def through(p, s, value):
    '''Multiply the values of rows that see no key by 0, so that NaN in a value reaches them.'''
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    sink = None if p.sink is None else p.sink.astype(s.dtype)[:, None, None]
    top = top if sink is None else np.maximum(top, sink)
    shift = np.where(np.isfinite(top), top, 0)
    e = np.exp(s - shift)
    total = e.sum(axis=-1, keepdims=True) + (0 if sink is None else np.exp(sink - shift))
    return e @ value / np.where(total == 0, 1, total), right.attend(p, s, value)[1]

reaches_masked_rows = Dense(attend=through)

def stands_for_a_mask(p):
    '''Mask with -1e30; rows that see no key are right, but -1e30 is greater than some scores.'''
    if p.mask is None:
        return right(p)
    every = right(p)
    def finite(p, s):
        return np.where(np.isneginf(mask(p, s)), np.float32(-1e30), s)
    out = Dense(order=(*Dense().order[:2], finite))(p).out
    empty = np.isneginf(every.lse) if p.sink is None else np.zeros_like(every.lse, dtype=bool)
    return AttentionState(np.where(empty[..., None], 0, out), every.lse)

def out_only(p):
    return AttentionState(right(p).out, None)

def out_only_with_nan(p):
    return AttentionState(reaches_masked_rows(p).out, None)

calls = []

def races(p):
    '''Round the result while another call is being computed.'''
    calls.append(1)
    try:
        out, lse = right(p)
        again = [right(p) for _ in range(5)]
        return AttentionState(out.astype(np.float16).astype(out.dtype) if len(calls) > 1 else out, lse)
    finally:
        calls.pop()
"""
"""Attention kernels for NumPy."""

KERNEL = """
@hookimpl
def mha_kernels():
    yield Kernel("numpy", "attention", "mine", 1, "one_plugin:{load}", priority=-5, opt_in=True, handles={handles})
"""


def judged(source, tests, tmp_path, backend="numpy", more=()):
    """Judge a plugin by some tests of the suite; return the exit status and the output."""
    (tmp_path / "one_plugin.py").write_text(source, encoding="utf-8")
    arguments = [backend, "--plugin", "one_plugin", "--quick", "--dtype", "float32", *more, "-k", tests]
    done = conform(*arguments, cwd=tmp_path, path=[tmp_path])
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("load", "handles", "tests", "found"),
    [
        ("reaches_masked_rows", "ATTENTION_FEATURES", "test_promises and test_1", "test_1_a_value_of_nan"),
        ("stands_for_a_mask", "ATTENTION_FEATURES", "test_promises and test_3", "test_3_no_finite_number"),
        ("out_only_with_nan", "ATTENTION_FEATURES - {'lse'}", "test_promises and test_1", "test_1_a_value_of_nan"),
        ("races", "ATTENTION_FEATURES", "test_threads", "test_calls_of_one_shape_do_not_mix"),
        ("right", "ATTENTION_FEATURES", "test_promises or test_threads or test_determinism or test_inputs", None),
        ("out_only", "ATTENTION_FEATURES - {'lse'}", "test_promises or test_threads", None),
        ("right", "frozenset()", "test_promises or test_inputs", None),
        ("right", "ATTENTION_FEATURES | {'vmap', 'forward_gradient'}", "test_kernels or test_promises", None),
    ],
)
def test_a_kernel_that_only_use_kernel_chooses_is_judged(load, handles, tests, found, tmp_path):
    status, out = judged(ATTENTION + KERNEL.format(load=load, handles=handles), f"({tests}) and mine", tmp_path)
    assert status == (found is not None), out
    assert found is None or f"{found}" in out
    assert "by_kernel_mine" in out or found is None


@pytest.mark.full
def test_a_kernel_that_refuses_every_call_is_neither_right_nor_wrong(tmp_path):
    refusing = KERNEL.format(load="right", handles="ATTENTION_FEATURES").replace("opt_in", "supports=lambda call: 'no', opt_in")
    status, out = judged(ATTENTION + refusing, "test_promises and mine", tmp_path, more=["-rs"])
    assert status == 0
    assert "the kernel refused every call: no" in out


PREPARED = """
import numpy as np
from mha_core.plugin import ATTENTION_FEATURES, AttentionState, Kernel, hookimpl
from wrong_plugins.dense import right

def prepare_right(p):
    return lambda q, k, v, sink: right(p.with_arrays(q, k, v, sink=sink))

def prepare_keeps_a_key(p):
    key = p.key.copy()
    return lambda q, k, v, sink: right(p.with_arrays(q, key, v, sink=sink))

def prepare_keeps_its_result(p):
    kept = np.empty((*p.rows_shape, p.value.shape[-1]), dtype=p.query.dtype)
    def run(q, k, v, sink):
        kept[...], lse = right(p.with_arrays(q, k, v, sink=sink))
        return AttentionState(kept, lse)
    return run

def prepare_reads_rows(p):
    '''Read the memory of the keys as if it were contiguous.'''
    def run(q, k, v, sink):
        whole = np.lib.stride_tricks.as_strided(k, k.shape, p.key.strides) if k.strides[-1] == k.itemsize else k
        return right(p.with_arrays(q, whole, v, sink=sink))
    return run

def prepare_for_one_thread(p):
    from threading import get_ident
    mine = get_ident()
    return lambda q, k, v, sink: right(p.with_arrays(q if get_ident() == mine else q + 1, k, v, sink=sink))

@hookimpl
def mha_kernels():
    yield Kernel("numpy", "attention", "mine", 1, "wrong_plugins.dense:right", handles=ATTENTION_FEATURES, opt_in=True,
                 prepare="one_plugin:{prepare}")
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ("prepare_right", None),
        ("prepare_keeps_a_key", "a prepared call with other numbers than the first"),
        ("prepare_keeps_its_result", "a prepared call changed the result of the one before"),
        ("prepare_reads_rows", "a prepared call with arrays that are "),
        ("prepare_for_one_thread", "another thread got other bits"),
    ],
)
def test_prepared_calls_are_judged(prepare, says, tmp_path):
    status, out = judged(PREPARED.replace("{prepare}", prepare), "test_prepared and mine", tmp_path)
    assert status == (says is not None), out
    assert says is None or says in out


BACKEND = """
import concurrent.futures
import threading
from mha_core.plugin import Backend, hookimpl

def later(name):
    def call(*arguments):
        from wrong_plugins import backends
        import numpy as np
        return globals()[name](np, backends, *arguments)
    return call

def namespace(np, backends):
    return backends.Namespace()

def from_right(np, backends, x, device):
    return backends.from_numpy(x, device)

def from_first_row(np, backends, x, device):
    '''Lose the sign of zero.'''
    return backends.from_numpy(x + np.zeros((), x.dtype) if x.dtype.kind == "f" else x, device)

def from_int64(np, backends, x, device):
    '''Convert int64 through float64, which has 53 bits.'''
    return backends.from_numpy(x.astype(np.float64).astype(x.dtype) if x.dtype == np.int64 else x, device)

def to_right(np, backends, x):
    return np.asarray(x)

def to_unsigned(np, backends, x):
    '''Read int8 as if it had no sign.'''
    return np.asarray(x).view(np.uint8).astype(np.int8) // 2 * 2 if x.dtype == np.int8 else np.asarray(x)

def to_in_memory_order(np, backends, x):
    '''Read bytes in the order of memory, for bool only.'''
    return np.asarray(x).ravel("K").reshape(x.shape) if x.dtype == bool else np.asarray(x)

def in_order(np, backends, function, items):
    return map(function, items)

def as_completed(np, backends, function, items):
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for done in concurrent.futures.as_completed([threads.submit(function, item) for item in items]):
            yield done.result()

LOCK = threading.Lock()

def one_at_a_time(np, backends, function, items):
    with LOCK:
        return iter([function(item) for item in items])

def drops_errors(np, backends, function, items):
    for item in items:
        try:
            yield function(item)
        except ArithmeticError:
            pass

def reads_all(np, backends, function, items):
    return map(function, list(items))

def in_pairs(np, backends, function, items):
    '''Compute pairs: the last of an odd number is lost.'''
    items = iter(items)
    for pair in zip(items, items):
        yield from map(function, pair)

@hookimpl
def mha_backends():
    yield Backend("mine", 1, ("wrong_plugins.backends:Array",), later("namespace"), from_numpy=later("FROM"),
                  to_numpy=later("TO"), parallel=later("PARALLEL"))
"""
RIGHT = {"FROM": "from_right", "TO": "to_right", "PARALLEL": "in_order"}
CONVERSIONS = "test_numbers_of_every_dtype_come_in_and_go_out_bit_for_bit"


@pytest.mark.full
@pytest.mark.parametrize(
    ("field", "function", "found"),
    [
        ("TO", "to_right", None),
        ("TO", "to_unsigned", f"{CONVERSIONS}[int8]"),
        ("TO", "to_in_memory_order", "test_views_of_every_dtype_go_out_bit_for_bit[bool]"),
        ("FROM", "from_first_row", f"{CONVERSIONS}[float32]"),
        ("FROM", "from_int64", f"{CONVERSIONS}[int64]"),
        ("PARALLEL", "as_completed", "test_results_come_in_order"),
        ("PARALLEL", "in_pairs", "test_results_come_in_order"),
        ("PARALLEL", "drops_errors", "test_an_exception_reaches_the_caller"),
        ("PARALLEL", "reads_all", "test_items_are_read_as_results_are_asked_for"),
        ("PARALLEL", "one_at_a_time", "test_nested_calls_return"),
    ],
)
def test_conversions_and_parallel_are_judged(field, function, found, tmp_path):
    source = BACKEND
    for name, value in (RIGHT | {field: function}).items():
        source = source.replace(f'later("{name}")', f'later("{value}")')
    if function == "one_at_a_time":
        source += "\nfrom mha_core.conformance import test_parallel\ntest_parallel.SECONDS = 3.0\n"
    tests = "test_parallel" if field == "PARALLEL" else "test_namespace"
    status, out = judged(source, "nested" if function == "one_at_a_time" else tests, tmp_path, "mine")
    assert status == (found is not None), out
    assert found is None or found in out


WEIGHTS = """
import numpy as np
from mha_core.algebra import attention as algebra
from mha_core.plugin import ATTENTION_FEATURES, Kernel, hookimpl

def right(p, lse, rows, cols, num_keys):
    return algebra.attention_weights(p, lse, rows, cols, num_keys)

def off(p, *arguments):
    return algebra.attention_weights(p, *arguments) * np.asarray(1.0001, p.query.dtype)

def ignores_lse(p, lse, rows, cols, num_keys):
    '''Normalise over the columns that are chosen.'''
    w = algebra.attention_weights(p, lse, rows, cols, num_keys)
    return w / np.maximum(w.sum(axis=-1, keepdims=True), np.float32(1e-30)) if lse is None and len(cols) else w

def sorts_rows(p, lse, rows, cols, num_keys):
    return algebra.attention_weights(p, lse, sorted(rows), cols, num_keys)

def mean_of_masked(p, lse, rows, cols, num_keys):
    w = algebra.attention_weights(p, lse, rows, cols, num_keys)
    return np.where((w == 0).all(axis=-1, keepdims=True), np.asarray(1 / max(len(cols), 1), w.dtype), w)

def drops_the_sink(p, lse, *rest):
    from dataclasses import replace
    return algebra.attention_weights(replace(p, sink=None), lse, *rest)

count = [0]

def changes(p, *arguments):
    count[0] += 1
    return algebra.attention_weights(p, *arguments) * np.asarray(1 + count[0] % 2 * 2e-7, p.query.dtype)

@hookimpl
def mha_kernels():
    yield Kernel("numpy", "attention_weights", "mine", 1, "one_plugin:LOAD", priority=-5, opt_in=True,
                 handles=ATTENTION_FEATURES - {"lse", "value_dim"})
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("load", "found"),
    [
        ("right", None),
        ("off", "test_features_alone_and_in_pairs"),
        ("ignores_lse", "test_features_alone_and_in_pairs"),
        ("sorts_rows", "test_features_alone_and_in_pairs"),
        ("mean_of_masked", "test_1_the_weights_of_a_fully_masked_row_are_zero"),
        ("drops_the_sink", "test_features_alone_and_in_pairs"),
        ("changes", "test_14_equal_calls_give_the_same_bits"),
    ],
)
def test_kernels_of_weights_are_judged(load, found, tmp_path):
    """The right one passes all tests that concern any kernel."""
    tests = "test_kernels or test_weights or test_promises" if found is None else "test_weights and mine"
    status, out = judged(WEIGHTS.replace("LOAD", load), tests, tmp_path)
    assert status == (found is not None), out
    assert found is None or found in out


def test_a_weights_kernel_without_gradient_is_not_asked_for_that_of_a_bias(installed):
    """As for attention: arrays inside a mask or bias may require a gradient."""
    torch = pytest.importorskip("torch")
    import mha_core as mha
    from mha_core.plugin import ATTENTION_FEATURES
    from sample_kernels import a_kernel

    handles = ATTENTION_FEATURES - {"lse", "value_dim"}
    installed(a_kernel("attention_weights", backend="torch", load="sample_kernels:absent", handles=handles))
    x, bias = torch.randn(2, 3, 4), torch.zeros(3, 3, requires_grad=True)
    mha.attention_weights(x, x, bias=bias)[0, 0, 0].backward()
    assert (bias.grad != 0).any()
