"""A step of a language model as one function: compiled once for a capacity, with the tokens of generation."""

import needs
import numpy as np
import pytest
from causal_models import TEXT, greedy, read, write
from needs import Library

import mha_core as mha

torch = Library("torch")


def as_it_is(model):
    """Return a step, and the programs that were compiled for it; None: it is not compiled."""
    return lambda ids, cache: (model.next_logits(np.asarray(ids), cache), cache), None


def by_torch(model):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    run = torch.compile(model.next_logits, backend=graphs, fullgraph=True)

    @torch.no_grad
    def step(ids, cache):
        return run(torch.asarray(ids), cache), cache

    return step, graphs.graphs


def by_jax(model):
    import jax

    programs = []

    @jax.jit
    def run(ids, cache):
        programs.append(ids.shape)
        return model.next_logits(ids, cache), cache

    return lambda ids, cache: run(jax.numpy.asarray(ids), cache), programs


@pytest.mark.parametrize(
    ("name", "backend", "compiled"),
    [
        ("mistral with windows", "numpy", as_it_is),
        ("gemma3", "torch", by_torch),
        pytest.param("qwen3 with windows", "jax", by_jax, marks=needs.installed("mha_jax", "jax")),
    ],
)
def test_a_step_is_compiled_once_for_a_capacity(once, name, backend, compiled):
    folder, new = once(write, name), 60  # more than a window
    expected, (ids,) = greedy(read(folder, "float32"), [TEXT], new)
    cache, given, tokens = mha.DecoderCache(capacity=len(ids) + new), [ids], []
    step, programs = compiled(read(folder, "float32", backend=backend).model)
    for _ in range(new):
        logits, cache = step(given, cache)
        tokens.append(int(logits[0].argmax()))
        given = [tokens[-1:]]
    assert [tokens] == expected and int(cache.length) == len(ids) + new - 1
    assert programs is None or len(programs) == 2


def test_a_step_of_no_tokens_is_refused(once):
    model = read(once(write, "llama")).model
    for ids in (np.zeros((1, 0), dtype=int), np.zeros(3, dtype=int)):
        with pytest.raises(ValueError, match=r"expected \(n, L\), with one token at least"):
            model.next_logits(ids, mha.DecoderCache())
