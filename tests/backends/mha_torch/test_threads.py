"""Tasks of torch's backend: each thread computes with one core, and no other thread's number of threads changes."""

import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode

import mha_text as mt
import mha_torch.threads as threads
from mha_core.dispatch.backend import load

needs_setters = pytest.mark.skipif(threads._setters() is None, reason="threads of OpenMP and MKL cannot be set here")


@pytest.fixture(autouse=True)
def two_threads():
    """Two threads of torch, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def facts(_):
    """The thread that computes, its number of threads, and its modes of autograd."""
    torch.ones(3) + 1
    return threading.get_ident(), torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def all_facts(count=6):
    return list(load("torch").parallel(facts, range(count)))


def in_new_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@needs_setters
def test_a_task_uses_one_core_and_others_keep_theirs():
    meanwhile = []

    def task(at):
        meanwhile.append(in_new_thread(torch.get_num_threads))  # the first operation of a new thread reads torch's own number
        return facts(at)

    actual = list(load("torch").parallel(task, range(6)))
    assert {count for _, count, *_ in actual} == {1}
    assert threading.get_ident() not in {thread for thread, *_ in actual}
    assert meanwhile == [2] * 6
    assert torch.get_num_threads() == in_new_thread(torch.get_num_threads) == 2


@needs_setters
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("records", [False, True])
def test_modes_of_autograd_are_those_of_the_caller(inference, records):
    with torch.inference_mode(inference), torch.set_grad_enabled(records):
        actual = all_facts()
    assert {tuple(modes) for _, _, *modes in actual} == {(records, inference)}


@needs_setters
def test_gradients_pass_through_threads():
    w = torch.ones(3, requires_grad=True)
    sum(load("torch").parallel(lambda n: (w * n).sum(), range(5))).backward()
    assert w.grad.tolist() == [10.0] * 3
    with torch.no_grad():
        assert not any(y.requires_grad for y in load("torch").parallel(lambda n: w * n, range(5)))


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


def in_caller(count=6):
    return {thread for thread, *_ in all_facts(count)} == {threading.get_ident()}


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch.func.jvp's own
def test_what_belongs_to_the_thread_keeps_tasks_in_it(monkeypatch):
    for context in (torch.autocast("cpu"), Mode(), torch.device("cpu")):
        with context:
            assert in_caller()

    def doubled(x):
        assert in_caller()
        return 2 * x

    torch.func.vmap(doubled)(torch.ones(2))
    torch.func.jvp(doubled, (torch.ones(2),), (torch.ones(2),))
    assert in_caller(count=1)
    monkeypatch.setattr(threads, "_setters", lambda: None)
    assert in_caller()


def test_the_number_is_set_and_torch_gets_its_own_back(set_num_threads):
    load("torch")
    for number, of_torch in ((5, 5), (3, 3), (None, 2), (None, 2)):
        set_num_threads(number)
        assert torch.get_num_threads() == of_torch


def test_one_thread_computes_everything_itself(set_num_threads):
    set_num_threads(1)
    assert in_caller()


@needs_setters
def test_no_task_begins_after_an_error_or_when_nobody_asks():
    begun = []

    def task(n):
        begun.append(n)
        if n == 3:
            raise ValueError("three")
        return n

    with pytest.raises(ValueError, match="three"):
        list(load("torch").parallel(task, range(1000)))
    assert len(begun) < 20
    begun.clear()
    results = load("torch").parallel(task, range(4, 1000))
    assert next(results) == 4
    results.close()
    assert len(begun) < 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mha-torch")]


@needs_setters
def test_texts_have_the_same_vectors_with_one_thread_and_with_several(minilm):
    encoder = mt.TextEncoder.from_pretrained(minilm, backend="torch")
    texts = [f"text number {n} " * (n % 30 + 1) for n in range(60)]
    several = encoder.encode(texts)
    torch.set_num_threads(1)
    torch.testing.assert_close(encoder.encode(texts), several, rtol=0, atol=1e-6)
