"""The compiled kernel on several threads: the same bits for any number, many callers at once, and forked processes."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from judged_attention import normal
from native import in_process, needs_native

import mha_core as mha

pytestmark = [needs_native, pytest.mark.usefixtures("native")]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

ARRAYS = ("query", "key", "value")
PROBLEMS = {
    "plain": ((2, 4, 300, 64), (2, 4, 300, 64), lambda rng: {}),
    "causal": ((2, 4, 300, 64), (2, 4, 300, 64), lambda rng: {"mask": mha.causal(), "bias": mha.alibi(4)}),
    "packed": ((1, 4, 700, 32), (1, 4, 700, 32), lambda rng: {"mask": mha.packed([300, 0, 250, 150])}),
    "decoding": ((1, 8, 1, 64), (1, 2, 4000, 64), lambda rng: {"sink": normal(rng, 8)}),
    "few queries": ((1, 1, 40, 64), (1, 1, 4000, 64), lambda rng: {"softcap": 20.0}),
    "keys in parts": ((1, 3, 1100, 24), (1, 3, 1100, 24), lambda rng: {"mask": mha.causal()}),
}


def same_bits(*arrays, **options):
    """Check that attention and its gradients, both by this kernel, are the same for 1, 2, 3 and 7 threads."""
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7, 2):
            mha.set_num_threads(threads)
            torch.set_num_threads(threads)
            with mha.use_kernel("attention", "native"), mha.use_kernel("attention_vjp", "native"):
                state, pullback = mha.vjp(mha.attention_state, *arrays, wrt=ARRAYS.__contains__, **options)
                arrays_out = [*state, *pullback(mha.AttentionState(state.out, state.lse))]
            results.append([torch.as_tensor(x).view(torch.uint8).numpy().tobytes() for x in arrays_out])
    finally:
        mha.set_num_threads(None)
        torch.set_num_threads(before)
    assert all(each == results[0] for each in results)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_number_of_threads_changes_no_bit(rng, name):
    query, key, options = PROBLEMS[name]
    same_bits(normal(rng, *query), normal(rng, *key), normal(rng, *key), **options(rng))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_changes_no_bit_of_tensors(rng, dtype):
    same_bits(*(torch.from_numpy(normal(rng, 2, 3, 1100, 24)).to(dtype) for _ in range(3)), mask=mha.causal())


def test_many_callers_at_once(rng, set_num_threads):
    arrays = [normal(rng, 2, 4, 200, 64) for _ in range(3)]
    expected = mha.scaled_dot_product_attention(*arrays)
    set_num_threads(3)
    with ThreadPoolExecutor(8) as callers:
        results = list(callers.map(lambda _: mha.scaled_dot_product_attention(*arrays), range(160)))
    assert all(np.array_equal(out, expected) for out in results)


@pytest.mark.usefixtures("level")
def test_products_of_torch_are_not_disturbed(rng):
    """torch's products of bfloat16 use AMX too, in the same threads."""
    x = torch.from_numpy(normal(rng, 1, 2, 200, 64)).to(torch.bfloat16)
    expected, product = mha.scaled_dot_product_attention(x, x, x), x @ x.mT
    with ThreadPoolExecutor(6) as callers:
        results = callers.map(lambda _: (x @ x.mT, mha.scaled_dot_product_attention(x, x, x)), range(120))
    assert all(torch.equal(y, product) and torch.equal(out, expected) for y, out in results)


FORKED = """
import os, threading
import ml_dtypes, numpy as np, mha_core as mha
mha.set_num_threads(3)
x = np.random.default_rng(0).normal(size=(2, 4, 200, 64)).astype("{dtype}")
expected = mha.scaled_dot_product_attention(x, x, x)
assert "native" in str(mha.explain("attention", x, x, x))
stop, wrong = threading.Event(), []
def call():
    while not stop.is_set():
        if not np.array_equal(mha.scaled_dot_product_attention(x, x, x), expected):
            wrong.append(1)
callers = [threading.Thread(target=call) for _ in range(3)]
for caller in callers:
    caller.start()
statuses = []
for _ in range(10):
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(mha.scaled_dot_product_attention(x, x, x), expected) else 1)
    statuses.append(os.waitpid(child, 0)[1])
stop.set()
for caller in callers:
    caller.join()
print(statuses, wrong)
"""


@needs_fork
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_forked_process_computes(dtype):
    """In bfloat16 it may use AMX too."""
    assert in_process(FORKED.format(dtype=dtype)) == f"{[0] * 10} []"


FORKED_TENSORS = """
import os, torch, mha_core as mha
torch.set_num_threads(3)
(torch.randn(4_000_000) + 1).sum()  # torch's own work uses its threads too
x = torch.randn(2, 4, 200, 64)
expected = mha.scaled_dot_product_attention(x, x, x)
child = os.fork()
if not child:
    out = mha.scaled_dot_product_attention(x, x, x)  # an operation of torch's would wait for threads for ever
    os._exit(0 if (out.numpy() == expected.numpy()).all() else 1)
print(os.waitpid(child, 0)[1], torch.equal(mha.scaled_dot_product_attention(x, x, x), expected))
"""


@pytest.mark.full  # imports torch in a process of its own
@needs_fork
def test_a_forked_process_computes_with_tensors():
    """It lacks the threads of torch's OpenMP, which its parent computed with."""
    assert in_process(FORKED_TENSORS) == "0 True"
