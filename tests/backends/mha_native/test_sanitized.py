"""The compiled kernel under sanitizers: it reads and writes no memory that is not its own, and its threads do not race.

Conformance's problems run with AddressSanitizer and UndefinedBehaviorSanitizer, many callers at once with ThreadSanitizer.
"""

import sys

import pytest
from native import LEVELS, needs_native
from project import INSTALLED
from sanitized_builds import needs_sanitizers, with_address_sanitizer, with_thread_sanitizer
from suite import SUITE

pytestmark = [needs_native, needs_sanitizers, pytest.mark.full, pytest.mark.rotating("sanitized")]  # each build takes minutes


@pytest.mark.parametrize("level", LEVELS)
def test_no_memory_is_read_out_of_bounds(tmp_path, level):
    command = [*SUITE, "-q", "-s", "-p", "no:cacheprovider", "--backend", "numpy", "--quick", "-k", "native"]
    done = with_address_sanitizer(command, tmp_path, MHA_NATIVE_LEVEL=level, status=0)
    assert "attention by native" in done.stdout


FEW_ROWS = """
import itertools
import ml_dtypes, numpy as np
from mha_native.on_numpy_few_rows import linear

for dtype, inputs, outputs, rows in itertools.product(("f", ml_dtypes.bfloat16), (1, 15, 33, 130), (1, 5, 67), (1, 2, 3, 5, 8)):
    x, w, b = (np.ones(shape, dtype) for shape in ((rows, inputs), (inputs, outputs), outputs))
    for weight in (w, np.ascontiguousarray(w.T).T):
        assert (linear(x, weight, b).astype(float) == inputs + 1).all()
print("clean")
"""


@pytest.mark.parametrize("level", LEVELS)
def test_no_memory_is_read_out_of_bounds_by_linear_maps_of_few_rows(tmp_path, level):
    done = with_address_sanitizer([sys.executable, "-c", FEW_ROWS], tmp_path, MHA_NATIVE_LEVEL=level)
    assert done.stdout == "clean\n", done.stderr[-3000:]


PROGRAMS = """
import jax, jax.numpy as jnp, numpy as np, mha_core as mha
rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(np.float32))
PROBLEMS = [
    ((2, 4, 130, 20), (2, 2, 77, 20), 33, {"mask": mha.causal(), "query_offset": 0, "softcap": 3.0, "sink": normal(4)}),
    ((1, 8, 1, 64), (1, 2, 3000, 64), 64, {}),
    ((2, 2, 60, 16), (2, 2, 60, 16), 16, {"mask": mha.packed([20, 0, 40])}),
    ((2, 2, 60, 16), (2, 2, 60, 16), 7, {"mask": mha.key_lengths(jnp.asarray([5, 0])), "bias": mha.alibi(2)}),
]
for query, key, width, options in PROBLEMS:
    arrays = normal(*query), normal(*key), normal(*key[:-1], width)
    with mha.use_kernel("attention", "native"), mha.use_kernel("attention_vjp", "native"):
        loss = lambda *arrays: mha.scaled_dot_product_attention(*arrays, **options).sum()
        jax.block_until_ready(jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays))
        many = [jnp.stack([x, x]) for x in arrays]
        jax.block_until_ready(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(arrays[0], *many[1:]))
print("clean")
"""


def test_no_memory_is_read_out_of_bounds_in_programs_of_jax(tmp_path):
    done = with_address_sanitizer([sys.executable, "-c", PROGRAMS], tmp_path, more=[INSTALLED])
    assert done.stdout == "clean\n", done.stderr[-3000:]


TOO_LONG = """
import numpy as np
from mha_native.level import native
x = np.zeros((1, 1, 64, 16), np.float32)
plan = native.plan("f", (1,), 1, 1, 64, 80, 16, 16, 1.0, 0.0, None, None, 0)
lie = (x.ctypes.data, "f", (1, 1, 80, 16), (1280, 1280, 16, 1))  # it has 64 rows
native.attend(plan, 1, x, lie, lie, x.copy(), *[None] * 9)
"""


def test_the_address_sanitizer_would_find_such_a_read(tmp_path):
    done = with_address_sanitizer([sys.executable, "-c", TOO_LONG], tmp_path)
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr, done.stderr


CALLERS = """
import threading
import numpy as np, mha_core as mha

mha.set_num_threads(3)
rng = np.random.default_rng(0)
normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
problems = [
    ([normal(2, 4, 200, 64)] * 3, {}),
    ([normal(1, 8, 1, 64)] + [normal(1, 2, 4000, 64)] * 2, {}),
    ([normal(1, 1, 40, 32)] + [normal(1, 1, 3000, 32)] * 2, {"sink": normal(1)}),
    ([normal(4, 700, 32)] * 3, {"mask": mha.packed([300, 400]) & mha.causal()}),
    ([normal(2, 4, 200, 64)] * 3, {"mask": mha.block_mask(lambda b, h, q, k: (q + h) % 3 > k % 2, 200, 200, num_heads=4)}),
]
assert all("native" in str(mha.explain("attention", *arrays, **options)) for arrays, options in problems)

def computed(arrays, options):
    out, pullback = mha.vjp(mha.scaled_dot_product_attention, *arrays, **options)
    with mha.use_kernel("attention_vjp", "native"):
        return out, *pullback(out)

expected = [computed(*problem) for problem in problems]
wrong = []

def call(first):
    for n in range(first, first + 12):
        if not all(map(np.array_equal, computed(*problems[n % 5]), expected[n % 5])):
            wrong.append(n)

callers = [threading.Thread(target=call, args=(first,)) for first in range(4)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
weight = mha.quantize_weight(normal(300, 200))
x = normal(500, 300)
results = []
callers = [threading.Thread(target=lambda: results.append(mha.linear(x, weight))) for _ in range(4)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
assert "native" in str(mha.explain(mha.linear, x, weight))
wrong += [y for y in results if not np.array_equal(y, results[0])]
print("wrong", wrong)
"""


def test_threads_do_not_race(tmp_path):
    done = with_thread_sanitizer([sys.executable, "-c", CALLERS], tmp_path)
    assert done.returncode == 0 and "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[-5000:]
    assert done.stdout.strip() == "wrong []"


ONE_RESULT = """
import threading
import numpy as np
from mha_native.level import native
x = np.zeros((1, 1, 512, 64), np.float32)
out = np.empty_like(x)
plan = native.plan("f", (1,), 1, 1, 512, 512, 64, 64, 1.0, 0.0, None, None, 0)
calls = [threading.Thread(target=native.attend, args=(plan, 1, x, x, x, out, *[None] * 9)) for _ in range(4)]
for call in calls:
    call.start()
for call in calls:
    call.join()
"""


def test_the_thread_sanitizer_would_find_a_race(tmp_path):
    """Four calls write to one array."""
    done = with_thread_sanitizer([sys.executable, "-c", ONE_RESULT], tmp_path)
    assert done.returncode != 0 and "data race" in done.stderr, done.stderr[-3000:]
