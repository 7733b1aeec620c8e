"""Memory of NumPy's attention kernel besides arguments and results: 2 MB of scratch for each thread, and O(L + S)."""

import tracemalloc
from functools import lru_cache

import numpy as np
import pytest
from judged_attention import inputs, normal, tiles

import mha_core as mha
from mha_numpy import scratch, threads
from mha_numpy.attention import kernel

SCRATCH = 2 << 20  # bytes for each thread
OBJECTS = 64 << 10  # bytes of Python objects, for the tasks of a call


class Repeated:
    """The same random numbers again and again: memory does not depend on them, and a hundred million take seconds to draw."""

    def __init__(self, dtype):
        self.numbers = np.random.default_rng(0).normal(size=1 << 16).astype(dtype)

    def normal(self, size):
        return np.resize(self.numbers, size)


DRAWN = Repeated(np.float32)


def options_of(name, heads, length, num_keys, batch):
    at_the_end = {"query_offset": num_keys - length}
    return {
        "plain": dict,
        "causal": lambda: {"mask": mha.causal(), **at_the_end},
        "window": lambda: {"mask": mha.window(num_keys // 4, 0), **at_the_end},
        "key_lengths": lambda: {"mask": mha.key_lengths(np.full(batch, num_keys - 5))},
        "alibi": lambda: {"bias": mha.alibi(heads), **at_the_end},
        "bias": lambda: {"bias": normal(DRAWN, heads, length, num_keys)},
        "one bias": lambda: {"bias": normal(DRAWN, length, num_keys)},
        "mask": lambda: {"mask": normal(DRAWN, length, num_keys) < 0},
        "causal mask": lambda: {"mask": mha.causal() & (normal(DRAWN, length, num_keys) < 0), **at_the_end},
        "rest": lambda: {"mask": mha.causal() | mha.prefix(9), **at_the_end},
        "packed": lambda: {"mask": mha.packed([length // 4] * 4)},
        "softcap and sink": lambda: {"softcap": 5.0, "sink": normal(DRAWN, heads)},
    }[name]()


def run_three(function, tasks):
    """Run the task of the highest estimated cost, one in the middle, and that of the lowest."""
    for at in sorted({0, len(tasks) // 2, len(tasks) - 1}):
        function(tasks[at])


@pytest.fixture(autouse=True, params=[run_three, pytest.param(None, marks=pytest.mark.full)])
def _tasks(request, monkeypatch):
    """The tasks of a call that are run: three, or all."""
    if request.param and request.function is not test_13_all_other_memory_grows_with_the_length:
        monkeypatch.setattr(kernel, "run", request.param)


def assert_little_scratch(arrays, options):
    """Check what one thread keeps after computing the tasks of this call: no thread can keep more."""
    scratch._own.__dict__.clear()
    threads.run(lambda _: tiles(*arrays, **options), range(1))  # a call inside a task runs all its tasks in this thread
    taken = sum(buffer.nbytes for buffer in scratch._own.__dict__.values())
    assert 0 < taken <= SCRATCH, f"{taken / SCRATCH:.3f} of the limit for a thread"


SHAPES = {
    "1x8x2048x64": (1, 8, 2048, 2048, 64),
    "8x8x512x64": (8, 8, 512, 512, 64),
    "32x12x128x32": (32, 12, 128, 128, 32),
    "1x2x4096x128": (1, 2, 4096, 4096, 128),
    "1x1x2048x256": (1, 1, 2048, 2048, 256),
    "64x12x16x64": (64, 12, 16, 16, 64),
    "decode": (1, 8, 1, 10_000, 64),
    "decode, many": (16, 8, 1, 1000, 64),
}
SMALL = [name for name in SHAPES if name not in ("decode", "1x2x4096x128")]
KINDS = ["plain", "causal", "window", "key_lengths", "alibi", "mask", "causal mask", "one bias", "softcap and sink"]


@lru_cache(maxsize=1)  # tests of one shape follow each other
def arrays_of(shape, dtype=np.float32, **changes):
    batch, heads, length, num_keys, dim = SHAPES[shape]
    return inputs(Repeated(dtype), length, num_keys, batch=(batch,), heads=heads, dim=dim, dtype=dtype, **changes)


@pytest.fixture(scope="module", autouse=True)
def _forget():
    yield
    arrays_of.cache_clear()


def problem(shape, kind, **changes):
    batch, _, length, num_keys, _ = SHAPES[shape]
    arrays = arrays_of(shape, **changes)
    return arrays, options_of(kind, arrays[0].shape[1], length, num_keys, batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_scratch_of_a_thread(shape, kind):
    assert_little_scratch(*problem(shape, kind))


@pytest.mark.parametrize("kind", ["plain", "causal", "mask"])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_scratch_of_other_dtypes(shape, kind, dtype):
    assert_little_scratch(*problem(shape, kind, dtype=dtype))


@pytest.mark.parametrize(("group", "width"), [(4, None), (7, 300), (1, 3)])
@pytest.mark.parametrize("kind", ["plain", "causal", "bias", "rest", "packed"])
def test_scratch_of_groups_and_widths(kind, group, width):
    arrays, _ = problem("1x8x2048x64", "plain", group=group, width=width)
    options = options_of(kind, 8 * group, 512, 512, 1)
    assert_little_scratch([x[:, :, :512] for x in arrays], options)


@pytest.mark.parametrize("view", [lambda x: np.repeat(x, 2, axis=-1)[..., ::2], lambda x: np.asfortranarray(x)])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask"])
@pytest.mark.parametrize("shape", SMALL)
def test_scratch_where_keys_and_values_are_copied(shape, kind, view):
    arrays, options = problem(shape, kind)
    assert_little_scratch([view(x) for x in arrays], options)


LENGTH, NUMBERS = 4096, 4
OF_FULL = [pytest.param(kind, marks=pytest.mark.full) for kind in ("causal", "window", "key_lengths", "alibi", "rest")]


@pytest.mark.parametrize("kind", ["plain", *OF_FULL, pytest.param("softcap and sink", marks=pytest.mark.full)])
def test_13_all_other_memory_grows_with_the_length(kind, set_num_threads):
    """Besides the scratch of two threads: a few numbers for each query and key of each head, such as a bias by distance."""
    heads, dim = 8, 64
    arrays = inputs(DRAWN, LENGTH, LENGTH, heads=heads, dim=dim)
    options = options_of(kind, heads, LENGTH, LENGTH, 1)
    set_num_threads(2)
    tracemalloc.start()
    state = tiles(*arrays, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    beyond = peak - state.out.nbytes - state.lse.nbytes - 2 * SCRATCH
    zeroed = arrays[1].nbytes + arrays[2].nbytes if kind in ("key_lengths", "rest") else 0  # copied before any kernel runs
    assert beyond - zeroed <= heads * 2 * LENGTH * NUMBERS * 4 + OBJECTS, (
        f"{(beyond - zeroed) / (heads * 2 * LENGTH * 4):.1f} numbers for each query and key"
    )
