"""Cells of docs/field.md about the caches of torch, transformers and ONNX."""

import warnings
from types import SimpleNamespace

import numpy as np
from needs import Library

from field.caches import (
    CAPACITY,
    CELLS,
    COMPILED,
    FP8,
    GROWS,
    IN_PLACE,
    INT8,
    LENGTHS,
    NARROW,
    PAGES,
    SELECT,
    UNPADDED,
    WINDOW,
    cell,
    memory,
)
from field.probes import numbers
from mha_conformance import oracle

onnx, onnxruntime, torch = map(Library, ("onnx", "onnxruntime", "torch"))
helper, reference = map(Library, ("onnx.helper", "onnx.reference"))
flex = Library("torch.nn.attention.flex_attention")
paged_attention = Library("torch.nn.attention.experimental._paged_attention")
dynamo, caches = map(Library, ("torch._dynamo.testing", "transformers.cache_utils"))
batching = Library("transformers.generation.continuous_batching.cache")


def tensor(rng, *shape):
    return torch.from_numpy(numbers(rng, *shape))


# torch


def paged_steps(rng, compiled=lambda step: step):
    """Return the pool, and its keys before and after steps of two sequences whose lengths differ."""
    pool = paged_attention.PagedAttention(n_pages=8, page_size=4, max_batch_size=2, device="cpu")
    held_keys, held_values, both = torch.zeros(1, 2, 32, 8), torch.zeros(1, 2, 32, 8), torch.arange(2)
    logical = flex.create_block_mask(flex.noop_mask, 2, None, 1, 16, device="cpu", BLOCK_SIZE=(1, 4))
    before, texts, attend = memory(held_keys), ([], []), flex.flex_attention

    def step(query, key, value, position):
        pool.assign(both, position[:, None], key, value, held_keys, held_values)
        mask = pool.convert_logical_block_mask(logical, kv_len=position + 1)
        return attend(query, held_keys, held_values, block_mask=mask)

    run, lengths = compiled(step), (2, 9)
    for at, (n, text) in enumerate(zip(lengths, texts, strict=True)):
        pool.reserve(torch.tensor([at]), torch.tensor([n + 4]))
        text += [tensor(rng, 1, 2, n, 8), tensor(rng, 1, 2, n, 8)]
        pool.assign(torch.tensor([at]), torch.arange(n)[None], *text, held_keys, held_values)
    for count in range(4):
        query, key, value = (tensor(rng, 2, 2, 1, 8) for _ in range(3))
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # it is slow if it is not compiled
            out = run(query, key, value, torch.tensor(lengths) + count)
        for at, text in enumerate(texts):
            text[:] = (torch.cat([old, new[at : at + 1]], dim=2) for old, new in zip(text, (key, value), strict=True))
            expected = oracle.attention(query[at].numpy(), *(x[0].numpy() for x in text))[0]
            np.testing.assert_allclose(out[at], expected, atol=1e-5)
    return pool, before, memory(held_keys)


@cell(CAPACITY, "torch")
def _(rng):
    _, before, after = paged_steps(rng)
    assert before == after


@cell(PAGES, "torch")
@cell(LENGTHS, "torch")
@cell(UNPADDED, "torch")
def _(rng):
    pool = paged_steps(rng)[0]
    assert (pool.page_table >= 0).sum(dim=1).tolist() == [2, 4]  # of 6 and 13 positions


def compiles_once(counter):
    """Return what compiles a step for torch, without a compiler of C++, and counts how often."""
    torch._dynamo.reset()
    return lambda step: torch.compile(step, fullgraph=True, backend=counter)


@cell(COMPILED, "torch")
def _(rng):
    counter = dynamo.CompileCounter()
    paged_steps(rng, compiles_once(counter))
    assert counter.frame_count == 1


# transformers


def updated(rng, layer, steps=20):
    """Update a layer's cache position by position; return all keys, and those that the cache held after each step."""
    every, held = [], []
    for _ in range(steps):
        every.append(tensor(rng, 1, 2, 1, 8))
        returned = layer.update(every[-1], -every[-1])[0]
        held.append(layer.keys)
    return torch.cat(every, dim=2), held, returned


@cell(GROWS, "transformers")
def _(rng):
    every, held, _ = updated(rng, caches.DynamicLayer())
    assert torch.equal(held[-1], every)


@cell(IN_PLACE, "transformers", "")
def _(rng):
    _, held, _ = updated(rng, caches.DynamicLayer())
    assert len(set(map(memory, held))) == len(held)


@cell(CAPACITY, "transformers")
def _(rng):
    every, held, _ = updated(rng, caches.StaticLayer(max_cache_len=20))
    assert torch.equal(held[-1], every)
    assert len(set(map(memory, held))) == 1


@cell(WINDOW, "transformers")
def _(rng):
    for layer in caches.DynamicSlidingWindowLayer(4), caches.StaticSlidingWindowLayer(20, 4):
        every, held, returned = updated(rng, layer)
        assert torch.equal(returned, every[:, :, -4:])
        assert memory(held[-1])[1] <= 4 * every[:, :, :1].nbytes


@cell(FP8, "transformers")
def _(rng):
    layer = caches.Fp8QuantizedLayer()
    every, _, returned = updated(rng, layer)
    held, scale = layer._quantized_keys
    assert held.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(held.float() * scale, returned)
    assert held.shape == every.shape


@cell(NARROW, "transformers", "")
def _(rng):
    _, _, returned = updated(rng, caches.Fp8QuantizedLayer())
    assert returned.dtype == torch.float32
    assert returned.shape[2] == 20


@cell(SELECT, "transformers")
def _(rng):
    for layer in caches.DynamicLayer(), caches.StaticLayer(max_cache_len=3):
        keys = tensor(rng, 3, 2, 3, 8)
        layer.update(keys, keys)
        layer.reorder_cache(torch.tensor([1, 1, 0]))
        assert torch.equal(layer.keys, keys[[1, 1, 0]])


@cell(COMPILED, "transformers")
def _(rng):
    layer, counter, key = caches.StaticLayer(max_cache_len=8), dynamo.CompileCounter(), tensor(rng, 1, 2, 1, 8)
    layer.update(key, key)  # allocates, outside of what is compiled
    attend, places = torch.nn.functional.scaled_dot_product_attention, torch.arange(8)[None]

    @compiles_once(counter)
    def step(key):
        keys, values = layer.update(key, key)
        return attend(key, keys, values, attn_mask=places < layer.cumulative_length)

    every = [key]
    for _ in range(7):
        every.append(tensor(rng, 1, 2, 1, 8))
        x = torch.cat(every, dim=2).numpy()
        np.testing.assert_allclose(step(every[-1]), oracle.attention(x[:, :, -1:], x, x)[0], atol=1e-5)
    assert counter.frame_count == 1


@cell(PAGES, "transformers")
@cell(LENGTHS, "transformers")
@cell(UNPADDED, "transformers")
def _(rng):
    """The cache of ``generate_batch``, which steps two requests of different lengths."""
    from transformers import ContinuousBatchingConfig, LlamaConfig

    model = LlamaConfig(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1)
    sizes = {"page_size": 4, "num_blocks": 8, "max_batch_tokens": 16, "max_blocks_per_request": 4, "max_memory_percent": 0.5}
    one = SimpleNamespace(tp_size=1)  # one process
    cache = batching.PagedAttentionCache(model, ContinuousBatchingConfig(**sizes), "cpu", one, torch.float32)
    kind, texts = batching.FULL_ATTENTION, {"long": [], "short": []}
    for added in {"long": 9, "short": 3}, {"long": 1, "short": 1}, {"long": 1, "short": 1}:
        read, write = [[]], [[]]
        for name, n in added.items():
            past = sum(x.shape[2] for x in texts[name])
            assert cache.can_store_request_tokens(SimpleNamespace(request_id=name, current_len=lambda past=past: past), n)
            cache.extend_read_and_write_indices(name, past, n, read, write)
            texts[name].append(tensor(rng, 1, 2, n, 8))
        new = torch.cat([x[-1] for x in texts.values()], dim=2)
        places = {"read_index": [torch.tensor(read[0])], "write_index": [torch.tensor(write[0])]}
        ends = {"cu_seq_lens_k": {kind: torch.zeros(1)}, "max_length_k": {kind: 0}}  # for attention, which is not called
        keys, values = cache.update(new, -new, 0, places | ends)
        assert torch.equal(keys, torch.cat([x for text in texts.values() for x in text], dim=2))
        assert torch.equal(values, -keys)
    pages = cache.cache_allocators[kind].block_table
    assert {name: len(table) for name, table in pages.items()} == {"long": 3, "short": 2}  # of 11 and 5 positions


# ONNX


def model_of(nodes, feeds, outputs):
    """Return a model whose inputs have the shapes of ``feeds``, and whose outputs are float32, once it is checked."""
    inputs = [(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in feeds.items()]
    graph = helper.make_graph(
        [helper.make_node(name, taken, returned, **attributes) for name, taken, returned, attributes in nodes],
        "step",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    return model


def scattered(rng, *, positions, start, steps, mode="linear"):
    """Step two sequences whose lengths differ; return the model, its feeds and results, and the keys of each sequence."""
    attend = ["query", "keys", "values", "", "", "", "seen"]
    nodes = [
        ("TensorScatter", ["past_keys", "key", "at"], ["keys"], {"mode": mode}),
        ("TensorScatter", ["past_values", "value", "at"], ["values"], {"mode": mode}),
        ("Attention", attend, ["out"], {}),
    ]
    outputs = {"keys": (2, 1, positions, 8), "values": (2, 1, positions, 8), "out": (2, 1, 1, 8)}
    past, texts, calls, model = [np.zeros((2, 1, positions, 8), dtype=np.float32)] * 2, ([], []), [], None
    for count in range(steps):
        at = np.asarray(start) + count
        new = {name: numbers(rng, 2, 1, 1, 8) for name in ("query", "key", "value")}
        feeds = {"past_keys": past[0], "past_values": past[1], **new, "at": at, "seen": np.minimum(at + 1, positions)}
        model = model or model_of(nodes, feeds, outputs)
        *past, out = reference.ReferenceEvaluator(model).run(None, feeds)
        calls.append((feeds, [*past, out]))
        for text, key in zip(texts, new["key"], strict=True):
            text.append(key)
    return model, calls, [np.concatenate(text, axis=1) for text in texts]


@cell(GROWS, "ONNX")
def _(rng):
    past = [numbers(rng, 1, 1, 4, 8) for _ in range(2)]
    new = {name: numbers(rng, 1, 1, 1, 8) for name in ("query", "key", "value")}
    nodes = [("Attention", [*new, "", "past_keys", "past_values"], ["out", "keys", "values"], {})]
    feeds = new | {"past_keys": past[0], "past_values": past[1]}
    model = model_of(nodes, feeds, {"out": (1, 1, 1, 8), "keys": (1, 1, 5, 8), "values": (1, 1, 5, 8)})
    out, keys, values = reference.ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(keys, np.concatenate([past[0], new["key"]], axis=2))
    np.testing.assert_allclose(out, oracle.attention(new["query"], keys, values)[0], atol=1e-5)


@cell(CAPACITY, "ONNX")
@cell(LENGTHS, "ONNX")
def _(rng):
    _, calls, texts = scattered(rng, positions=8, start=(0, 3), steps=4)
    keys, values = calls[-1][1][:2]
    assert keys.shape == (2, 1, 8, 8)
    np.testing.assert_array_equal(keys[0, :, :4], texts[0])
    np.testing.assert_array_equal(keys[1, :, 3:7], texts[1])
    query, out = calls[-1][0]["query"], calls[-1][1][2]
    for at, length in enumerate((4, 7)):
        expected = oracle.attention(query[at], keys[at, :, :length], values[at, :, :length])[0]
        np.testing.assert_allclose(out[at], expected, atol=1e-5)


@cell(WINDOW, "ONNX")
def _(rng):
    _, calls, texts = scattered(rng, positions=4, start=(0, 0), steps=6, mode="circular")
    keys = calls[-1][1][0]
    np.testing.assert_array_equal(keys[0], texts[0][:, [4, 5, 2, 3]])


@cell(INT8, "ONNX", "")
@cell(FP8, "ONNX", "")
@cell(NARROW, "ONNX", "")
def _(rng):
    def taken_by(name, version):
        return set(onnx.defs.get_schema(name, version).type_constraints[0].allowed_type_strs)

    narrow = {"tensor(int8)", "tensor(float8e4m3fn)"}
    assert narrow <= taken_by("TensorScatter", 24)
    assert not narrow & taken_by("Attention", 25)


@cell(COMPILED, "ONNX")
def _(rng):
    """ONNX Runtime compiles the model once, for shapes that are all fixed."""
    model, calls, _ = scattered(rng, positions=8, start=(0, 3), steps=4)
    session = onnxruntime.InferenceSession(model.SerializeToString(), quiet(), providers=["CPUExecutionProvider"])
    assert all(isinstance(n, int) for x in (*session.get_inputs(), *session.get_outputs()) for n in x.shape)
    for feeds, results in calls:
        for actual, expected in zip(session.run(None, feeds), results, strict=True):
            np.testing.assert_allclose(actual, expected, atol=1e-5)


def quiet():
    """Return options without the warning that a cache is copied, as its memory is not given for the result too."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


__all__ = ["CELLS"]  # which now has these cells too
