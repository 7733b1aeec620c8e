"""The compiled kernel on several threads: the same bits for any number, many callers at once, and forked processes."""

import os
import threading

import numpy as np
import pytest

import mha_core as mha
from native import chosen, in_process, needs_native, normal

pytestmark = [needs_native, pytest.mark.usefixtures("native")]

PROBLEMS = {
    "plain": ((2, 4, 300, 64), (2, 4, 300, 64), lambda rng: {}),
    "causal": ((2, 4, 300, 64), (2, 4, 300, 64), lambda rng: {"mask": mha.causal(), "bias": mha.alibi(4)}),
    "packed": ((1, 4, 700, 32), (1, 4, 700, 32), lambda rng: {"mask": mha.packed([300, 0, 250, 150])}),
    "decoding": ((1, 8, 1, 64), (1, 2, 4000, 64), lambda rng: {"sink": normal(rng, 8)}),
    "few queries": ((1, 1, 40, 64), (1, 1, 4000, 64), lambda rng: {"softcap": 20.0}),
}


@pytest.fixture
def threads():
    yield mha.set_num_threads
    mha.set_num_threads(None)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_number_of_threads_changes_no_bit(rng, threads, name):
    query, key, options = PROBLEMS[name]
    arrays = normal(rng, *query), normal(rng, *key), normal(rng, *key)
    options = options(rng)
    assert "native" in chosen(*arrays, **options)
    found = []
    for count in (1, 2, 7):
        threads(count)
        found.append(mha.attention_state(*arrays, **options))
    for state in found[1:]:
        np.testing.assert_array_equal(state.out, found[0].out)
        np.testing.assert_array_equal(state.lse, found[0].lse)


def test_many_callers_at_once(rng, threads):
    threads(3)
    arrays = [normal(rng, 2, 4, 200, 64) for _ in range(3)]
    expected = mha.scaled_dot_product_attention(*arrays)
    wrong, start = [], threading.Barrier(8, timeout=30)

    def call():
        start.wait()
        for _ in range(20):
            if not np.array_equal(mha.scaled_dot_product_attention(*arrays), expected):
                wrong.append(1)

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


FORKED = """
import os, threading
import numpy as np, mha_core as mha
mha.set_num_threads(3)
x = np.random.default_rng(0).normal(size=(2, 4, 200, 64)).astype(np.float32)
expected = mha.scaled_dot_product_attention(x, x, x)
assert "native" in str(mha.explain("attention", x, x, x))
stop = threading.Event()
def call():
    while not stop.is_set():
        assert np.array_equal(mha.scaled_dot_product_attention(x, x, x), expected)
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
print(statuses)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_computes():
    assert in_process(FORKED) == str([0] * 10)


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_computes_with_tensors():
    """It lacks the threads of torch's OpenMP, which its parent computed with."""
    assert in_process(FORKED_TENSORS) == "0 True"
