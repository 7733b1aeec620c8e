"""Calls of ours inside torch.compile: one graph without a gap, the same numbers, and nothing ignored in silence."""

import dataclasses
import shutil
from contextlib import nullcontext

import pytest
import torch
from processes import STRICT, printed
from torch._dynamo.testing import CompileCounterWithBackend

import mha_core as mha

SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 16, "seed": 0}


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function, *, fullgraph=True, backend="aot_eager"):
    """Compile; the graph of this backend has only torch's own functions, while "eager" would run our code again."""
    return torch.compile(function, fullgraph=fullgraph, backend=backend)


def inputs():
    query, x = torch.randn(2, 4, 6, 8), torch.randn(2, 6, 8)
    lengths = torch.tensor([3, 5])
    return query, x, lengths


MASKS = {
    "causal": lambda lengths: mha.causal(),
    "window": lambda lengths: mha.window(2, 0),
    "lengths": lambda lengths: mha.causal() & mha.key_lengths(lengths),
    "array": lambda lengths: lengths[:, None, None, None] > 3,
    "array and causal": lambda lengths: mha.array_mask(lengths[:, None, None, None] > 3) & mha.causal(),
    "packed": lambda lengths: mha.packed([2, 4]),
    "segments": lambda lengths: mha.segments(lengths[[0, 0, 1, 1, 1, 0]], lengths[[0, 0, 1, 1, 1, 0]]),
    "prefix": lambda lengths: mha.prefix(2) | mha.window(1, 1),
    "chunks": lambda lengths: mha.chunks(2),
}


@pytest.mark.parametrize("used_by", ["attention", pytest.param("layer", marks=pytest.mark.full)])
def test_masks_compile_whole(used_by):
    """Each mask is made both inside of the graph and outside; all are in one graph."""
    query, x, lengths = inputs()
    layer = mha.EncoderLayer.init(**SIZES, backend="torch")
    outside = {name: make(lengths) for name, make in MASKS.items()}

    def attend(query, x, mask):
        return layer(x, mask=mask) if used_by == "layer" else mha.scaled_dot_product_attention(query, query, query, mask=mask)

    def function(query, x, lengths):
        return {name: (attend(query, x, MASKS[name](lengths)), attend(query, x, outside[name])) for name in MASKS}

    torch.testing.assert_close(compiled(function)(query, x, lengths), function(query, x, lengths))


OPTIONS = {
    "alibi": lambda: {"bias": mha.alibi(4), "mask": mha.causal()},
    "array bias": lambda: {"bias": torch.randn(6, 6), "softcap": 3.0, "scale": 0.3},
    "sink": lambda: {"sink": torch.randn(4)},
    "offset": lambda: {"mask": mha.causal(), "query_offset": 1},
    "offsets": lambda: {"mask": mha.causal(), "query_offset": torch.tensor([0, 1])},
    "negated mask": lambda: {"mask": ~mha.causal()},  # made outside: torch.compile cannot follow ~ of any class but its own
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_compile_whole(name):
    query, *_ = inputs()
    options = OPTIONS[name]()

    def function(query):
        return tuple(mha.attention_state(query, query[:, :2], query[:, :2], **options))

    torch.testing.assert_close(compiled(function)(query), function(query))


def functions():
    """Return functions of x that make one graph each."""
    encoder = mha.Encoder.init(**SIZES, num_layers=1, backend="torch")
    decoder = mha.Decoder.init(**SIZES, num_layers=1, backend="torch")
    rotary = mha.Rotary.init(max_length=16, dim=4, interleaved=False, backend="torch")
    attention = dataclasses.replace(encoder.layers[0].attention, rotary=rotary)
    ones, keep = torch.eye(8), torch.tensor([True, False] * 4)
    ids, offsets = torch.tensor([0, 1, 1]), torch.tensor([0, 3])
    return {
        "dropout": lambda x: encoder(x, dropout=mha.Dropout(0.5, {"layers.0.feed_forward": keep})),
        "decoder": lambda x: decoder(x, x + 1, memory_mask=mha.causal()),
        "rotary": lambda x: (attention(x, mask=mha.causal()), attention(x, mask=mha.causal(), query_offset=offsets)),
        "weights": lambda x: (attention.weights(x), mha.attention_weights(x, x, rows=[0, 2], cols=slice(1, None, 2))),
        "operations": lambda x: (
            mha.self_attention(x, ones, ones, ones),
            tuple(mha.merge_states(mha.attention_state(x, x, x), mha.attention_state(x, -x, x))),
            x + mha.sinusoidal_positions(6, 8, backend="torch"),
            mha.embedding(ids, x[0]),
            mha.gelu(mha.rms_norm(x)) + mha.silu(x),
        ),
        "vmap": lambda x: torch.func.vmap(lambda x: attention(x, mask=mha.causal()))(x),
        "grad": torch.func.grad(lambda x: attention(x, mask=mha.causal()).square().sum()),
    }


@pytest.mark.parametrize("name", ["dropout", "decoder", "rotary", "weights", "operations", "vmap", "grad"])
def test_layers_and_functions_compile_whole(name):
    _, x, *_ = inputs()
    function = functions()[name]
    torch.testing.assert_close(compiled(function)(x), function(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_of_weights_and_inputs(backend):
    encoder = mha.Encoder.init(**SIZES, num_layers=1, backend="torch").map(lambda w: w.clone().requires_grad_())
    x = inputs()[1].requires_grad_()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(8, 8)

        def forward(self, x):
            return encoder(self.first(x), mask=mha.causal()).square().sum()

    model = Model()
    towards = [x, *model.parameters(), *encoder.arrays().values()]
    expected = torch.autograd.grad(model(x), towards)
    torch.testing.assert_close(torch.autograd.grad(compiled(model, backend=backend)(x), towards), expected)
    assert all(gradient.abs().sum() > 0 for gradient in expected[:3])


def test_a_layer_is_an_argument_too():
    def loss(layer, x):
        return layer(x).sum()

    layers = [mha.EncoderLayer.init(**SIZES | {"seed": seed}, backend="torch") for seed in (0, 1)]
    x = inputs()[1]
    run = compiled(loss)
    for layer in layers:
        torch.testing.assert_close(run(layer, x), loss(layer, x))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # inductor's own
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_inductor_gives_the_same_numbers_and_gradients():
    encoder = mha.Encoder.init(**SIZES, num_layers=2, backend="torch")
    x, lengths = inputs()[1].requires_grad_(), torch.tensor([3, 5])

    def function(x):
        return encoder(x, mask=mha.key_lengths(lengths)).square().sum()

    run = compiled(function, backend="inductor")
    torch.testing.assert_close(run(x), function(x))
    torch.testing.assert_close(torch.autograd.grad(run(x), x), torch.autograd.grad(function(x), x))


FIRST = """
import torch
torch.manual_seed(0)
import mha_core as mha
{made}
x = torch.randn(2, 6, 8)
out = torch.compile(lambda x: {call}, fullgraph=True, backend="eager")(x)
torch.testing.assert_close(out, {call})
"""


@pytest.mark.full  # each in a process that imports torch
@pytest.mark.parametrize(
    ("made", "call"),
    [
        ("", "mha.scaled_dot_product_attention(x, x, x, mask=mha.causal())"),
        ("w = torch.nn.Parameter(torch.eye(8))", "mha.linear(w, x[0].mT)"),
        ("layer = mha.LayerNorm(torch.ones(8), None)", "layer(x)"),
        ("", "mha.merge_states((x, x[..., 0]), (-x, x[..., 1])).out"),
    ],
)
def test_the_first_call_of_a_process_may_be_compiled(made, call):
    printed(STRICT, FIRST.format(made=made, call=call))


NUMPY = """
import numpy, torch
import mha_core as mha
a, x = numpy.ones(3, dtype=numpy.float32), torch.ones(3)
out = torch.compile(lambda x: x * 2 + torch.from_numpy(mha.relu(a)), backend="eager")(x)
torch.testing.assert_close(out, torch.full((3,), 3.0))
"""


@pytest.mark.full
def test_arrays_of_numpy_may_be_used_inside():
    printed(STRICT, NUMPY)


def test_each_shape_is_compiled_once():
    query, *_ = inputs()
    counted = torch._dynamo.testing.CompileCounter()

    def attend(q, k):
        return mha.scaled_dot_product_attention(q, k, k, mask=mha.causal(), query_offset=k.shape[-2] - q.shape[-2])

    run = compiled(attend, backend=counted)
    for length in (3, 5, 6, 5, 3, 6):
        sides = query[..., : length // 2, :], query[..., :length, :]
        torch.testing.assert_close(run(*sides), attend(*sides))
    assert counted.frame_count == 3


def test_a_number_may_vary():
    """torch traces a number that changes from call to call as a symbol."""

    def function(q, n):
        return {
            "offset": mha.scaled_dot_product_attention(q[..., :n, :], q, q, mask=mha.causal(), query_offset=6 - n),
            "scale": mha.scaled_dot_product_attention(q, q, q, scale=0.1 * n),
            "rows": mha.attention_weights(q, q, rows=[n]),
            "positions": mha.sinusoidal_positions(n, 8, backend="torch") + q[0, 0, 0],
            "rate": mha.dropout(q, q > 0, rate=0.1 * n),
            "window": mha.scaled_dot_product_attention(q, q, q, mask=mha.window(n, 0)),
        }

    query, *_ = inputs()
    run = compiled(function)
    for number in (2, 3, 5):
        torch.testing.assert_close(run(query, number), function(query, number))


def test_demands_and_watchers_are_seen():
    query, *_ = inputs()

    def function(query):
        return mha.scaled_dot_product_attention(query, query, query) * 2

    run = compiled(function, fullgraph=False)
    run(query)
    with mha.use_kernel("attention", "algebra"):
        assert mha.explain(run, query).kernel is None
    assert mha.explain(run, query).kernel == "sdpa"
    with mha.verify() as verification:
        run(query)
    assert verification.checked == {("attention", "sdpa"): 1}
    with mha.use_backend("numpy"), pytest.raises(mha.BackendMismatch, match="use_backend\\('numpy'\\) is in force"):
        run(query)
    torch.testing.assert_close(run(query), function(query))


@pytest.mark.parametrize("within", ["use_kernel", "explain"])
def test_a_demand_under_fullgraph_is_an_error_that_names_it(within):
    query, *_ = inputs()
    run = compiled(lambda query: mha.gelu(query))
    run(query)
    error = pytest.raises(torch._dynamo.exc.Unsupported, match="explain, verify, use_backend or use_kernel is in force")
    with mha.use_kernel("gelu", "algebra") if within == "use_kernel" else nullcontext(), error:
        run(query) if within == "use_kernel" else mha.explain(run, query)


def test_a_cache_is_used_outside_the_graph():
    attention = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0, backend="torch")
    plain, cache = mha.KeyValueCache(), mha.KeyValueCache()

    def step(x, cache):
        return attention(x, mask=mha.causal(), cache=cache)

    run = compiled(step, fullgraph=False)
    for x in torch.randn(3, 2, 1, 8):
        torch.testing.assert_close(run(x, cache), step(x, plain))
    assert cache.length == plain.length == 3
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="an argument cannot be part of a graph: a cache without capacity"):
        compiled(step)(x, cache)
    assert cache.length == 3


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_a_step_with_a_cache_of_fixed_capacity_is_compiled_once(dtype):
    """Then the same graph serves every length, and an eager step goes on with the same cache."""
    encoder = mha.Encoder.init(d_model=16, num_heads=2, d_ff=24, num_layers=2, seed=0, backend="torch")
    x, graphs = torch.randn(1, 9, 16), CompileCounterWithBackend("aot_eager")

    def step(x, cache):
        return encoder(x, mask=mha.causal(), cache=cache)

    fixed, grows = mha.DecoderCache(capacity=9, dtype=dtype), mha.DecoderCache(dtype=dtype)
    run, counted = torch.compile(step, backend=graphs, fullgraph=True), []
    with torch.no_grad():
        for start, stop in ((0, 4), (4, 5), (5, 6), (6, 7), (7, 8)):
            torch.testing.assert_close(run(x[:, start:stop], fixed), step(x[:, start:stop], grows))
            counted.append(graphs.frame_count)
        torch.testing.assert_close(step(x[:, 8:], fixed), step(x[:, 8:], grows))
        assert counted == [1, 2, 2, 2, 2] and int(fixed.length) == 9
        assert run(x[:, :1], fixed).isnan().all()


def test_an_error_says_what_is_wrong():
    query, *_ = inputs()

    def wrong(query):
        return mha.scaled_dot_product_attention(query, query[..., :2], query)

    with pytest.raises(ValueError, match="key has head_dim 2, but query has 8"):
        compiled(wrong, fullgraph=False)(query)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="ValueError: key has head_dim 2, but query has 8"):
        compiled(wrong)(query)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch.func.jvp's own
def test_a_forward_derivative_inside():
    query, *_ = inputs()

    def tangent(x):
        return torch.func.jvp(lambda x: mha.scaled_dot_product_attention(x, x, x), (x,), (x,))[1]

    torch.testing.assert_close(compiled(tangent)(query), tangent(query))


def test_an_error_of_a_graph_that_runs_is_the_library_s_own():
    table = torch.eye(4)
    run = compiled(lambda ids: mha.embedding(ids, table), backend="eager")  # runs our code for each call
    run(torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        run(torch.tensor([1, 9]))


def test_export():
    query, *_ = inputs()

    class Model(torch.nn.Module):
        def forward(self, query):
            return mha.scaled_dot_product_attention(query, query, query, mask=mha.causal())

    program = torch.export.export(Model(), (query,))
    torch.testing.assert_close(program.module()(query), Model()(query))
