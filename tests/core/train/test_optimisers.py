"""Optimisers: against torch's, and over trees of weights."""

import copy
import pickle
from dataclasses import replace
from itertools import pairwise

import needs
import numpy as np
import pytest
from small_layers import Pair, classifier, ones_like

import mha_core as mha
import mha_text as mt
from mha_core.dispatch.backend import load
from mha_core.train.optimisers import SGD, AdamW

torch = needs.Library("torch")

STEPS = 20
SHAPES = {"w": (5, 3), "b": (3,), "temperature": (), "none": (0, 4)}
ADAMW = {
    "defaults": AdamW(),
    "decay": AdamW(0.1, weight_decay=0.3),
    "no decay": AdamW(0.1, weight_decay=0.0),
    "betas": AdamW(0.01, beta_1=0.5, beta_2=0.9, eps=1e-3),
    "no memory": AdamW(0.01, beta_1=0.0, beta_2=0.0),
    "schedule": AdamW(lambda step: 0.1 / (step + 1)),
}
SGDS = {
    "plain": SGD(0.1),
    "decay": SGD(0.1, weight_decay=0.3),
    "momentum": SGD(0.1, momentum=0.9),
    "nesterov": SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "schedule": SGD(lambda step: 0.1 / (step + 1), momentum=0.5),
}


def torchs(optimiser, parameters):
    """Return torch's optimiser with the same settings."""
    if isinstance(optimiser, AdamW):
        settings = {"betas": (optimiser.beta_1, optimiser.beta_2), "eps": optimiser.eps}
        return torch.optim.AdamW(parameters, weight_decay=optimiser.weight_decay, foreach=False, **settings)
    settings = {"momentum": optimiser.momentum, "nesterov": optimiser.nesterov}
    return torch.optim.SGD(parameters, weight_decay=optimiser.weight_decay, foreach=False, **settings)


def numbers(rng, dtype=np.float64, scale=1.0):
    """Return an array for each of SHAPES."""
    return {name: np.asarray(scale * rng.normal(size=shape), dtype=dtype) for name, shape in SHAPES.items()}


def moved(backend, arrays):
    return {name: backend.from_numpy(x) for name, x in arrays.items()}


def trained(optimiser, backend, weights, gradients):
    """Return the weights after a step with each of the gradients, as NumPy arrays."""
    model, state = moved(backend, weights), optimiser.init(weights)
    for each in gradients:
        model, state = optimiser.step(model, moved(backend, each), state)
    return {name: backend.to_numpy(x) for name, x in model.items()}


def trained_by_torch(optimiser, weights, gradients):
    parameters = {name: torch.nn.Parameter(torch.tensor(w)) for name, w in weights.items()}
    same = torchs(optimiser, parameters.values())
    for step, each in enumerate(gradients):
        rate = optimiser.learning_rate
        same.param_groups[0]["lr"] = rate(step) if callable(rate) else rate
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(each[name])
        same.step()
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("optimiser", [*ADAMW.values(), *SGDS.values()], ids=[*ADAMW, *(f"sgd {name}" for name in SGDS)])
def test_twenty_steps_are_those_of_torch(backend, rng, optimiser, dtype):
    weights, gradients = numbers(rng, dtype), [numbers(rng, dtype) for _ in range(STEPS)]
    got = trained(optimiser, backend, weights, gradients)
    expected = trained_by_torch(optimiser, weights, gradients)
    unit = np.finfo(dtype).eps
    for name, w in got.items():
        assert w.dtype == dtype and w.shape == SHAPES[name]
        np.testing.assert_allclose(w, expected[name], rtol=40 * unit, atol=40 * unit)


@pytest.mark.parametrize("optimiser", [AdamW(0.1), SGD(0.1, momentum=0.9)], ids=["adamw", "sgd"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gradients_are_clipped_by_the_norm_of_all(backend, rng, optimiser, scale):
    weights, gradients = numbers(rng), [numbers(rng, scale=scale) for _ in range(3)]
    norms = [np.sqrt(sum(np.sum(x**2) for x in each.values())) for each in gradients]
    clipped = [
        {name: x * min(1.0, 0.5 / norm) for name, x in each.items()} for each, norm in zip(gradients, norms, strict=True)
    ]
    got = trained(replace(optimiser, clip_norm=0.5), backend, weights, gradients)
    expected = trained(optimiser, backend, weights, clipped)
    for name, w in got.items():
        np.testing.assert_allclose(w, expected[name], rtol=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_clipping_leaves_gradients_of_zero_and_dtypes_alone(backend, rng, scale):
    weights = {"a": rng.normal(size=4).astype(np.float32), "b": rng.normal(size=4)}
    gradients = {name: w * w.dtype.type(scale) for name, w in weights.items()}
    for name, w in trained(SGD(1.0, clip_norm=1e-6), backend, weights, [gradients]).items():
        assert w.dtype == weights[name].dtype
        np.testing.assert_allclose(w, weights[name], rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("optimiser", [AdamW(1e-3), SGD(1e-3, momentum=0.9), SGD(1e-3, clip_norm=1.0)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_half_precision_is_computed_in_float32_and_rounded_once(rng, optimiser, name, dtype):
    backend = load(name)
    xp, half = backend.xp, getattr(backend.xp, dtype)
    w = xp.astype(backend.from_numpy(rng.normal(size=300)), half)
    state, wide_state = optimiser.init(w), optimiser.init(w)
    for _ in range(3):
        gradient = xp.astype(backend.from_numpy(rng.normal(size=300)), half)
        exact, wide_state = optimiser.step(xp.astype(w, xp.float32), xp.astype(gradient, xp.float32), wide_state)
        w, state = optimiser.step(w, gradient, state)
        assert w.dtype == half and bool(xp.all(w == xp.astype(exact, half)))
    assert all(x.dtype == xp.float32 for x in state.moments["model"])


def test_gradients_that_are_not_finite_affect_their_own_weights_only(backend):
    with np.errstate(all="ignore"):
        got = trained(AdamW(0.1), backend, {"w": np.ones(3)}, [{"w": np.asarray([np.nan, np.inf, 0.0])}])
    assert np.isnan(got["w"]).tolist() == [True, True, False]


def test_a_layer_keeps_its_settings_and_all_that_has_no_gradient():
    model = classifier()
    gradients = replace(ones_like(model), encoder=None, heads=(None, Pair(np.ones(2), None)))
    optimiser = AdamW(0.1)
    new, state = optimiser.step(model, gradients, optimiser.init(model))
    assert type(new) is type(model) and new.name == "test"
    assert new.encoder is model.encoder and new.ids is model.ids and new.heads[0] is model.heads[0]
    assert isinstance(new.heads[1], Pair) and (new.heads[1].first < 1).all() and (new.table < 1).all()
    assert set(state.moments) == set(state.updates) == {"table", "heads.1.0"}
    same, state = optimiser.step(new, None, state)
    assert same is new and state.step == 2 and state.updates == {"table": 1, "heads.1.0": 1}


@pytest.mark.parametrize("container", [tuple, list, lambda items: dict(enumerate(items))])
def test_models_may_be_containers_of_layers_and_arrays(backend, container):
    layer = mha.LayerNorm.init(d_model=2, backend=backend.name)
    model = container([layer, backend.xp.ones((2,)), None, "setting"])
    gradients = container([layer, None, None, None])
    optimiser = SGD(1.0)
    new, state = optimiser.step(model, gradients, optimiser.init(model))
    assert type(new) is type(model) and len(new) == 4 and all(new[at] is model[at] for at in (1, 2, 3))
    assert backend.to_numpy(new[0].weight).tolist() == [0, 0] and list(state.updates) == ["0.weight", "0.bias"]


def test_a_text_encoder_is_trained_with_its_tokenizer_left_as_it_is(tiny_model, rng):
    encoder = mt.TextEncoder.from_pretrained(tiny_model, backend="numpy")
    gradients = replace(encoder, model=encoder.model.map(np.ones_like))
    new, state = AdamW(0.1).step(encoder, gradients, AdamW(0.1).init(encoder))
    assert new.tokenizer is encoder.tokenizer and new.backend is encoder.backend and new.model is not encoder.model
    assert "model.encoder.layers.1.attention.w_q" in state.moments and len(state.moments) == len(encoder.model.arrays())
    assert np.abs(new.encode(["a bird"]) - encoder.encode(["a bird"])).max() > 1e-3


@pytest.mark.parametrize("optimiser", [AdamW(0.1, clip_norm=1.0), SGD(0.1, momentum=0.9)], ids=["adamw", "sgd"])
def test_arrays_of_the_caller_are_not_written_to(rng, optimiser):
    models, gradients = [rng.normal(size=(4, 3))], rng.normal(size=(4, 3))
    gradients.flags.writeable = False
    state = optimiser.init(models[0])
    for _ in range(3):
        models[-1].flags.writeable = False
        new, state = optimiser.step(models[-1], gradients, state)
        models.append(new)
    assert all(not np.shares_memory(x, y) for x in models for y in (gradients, *state.moments["model"]))
    assert all((x != y).all() for x, y in pairwise(models))


def test_a_state_is_used_up_by_a_step(backend):
    w, optimiser = backend.xp.ones((3,)), AdamW(0.1)
    w, first = optimiser.step(w, w, optimiser.init(w))
    kept, shallow, stored = copy.deepcopy(first), copy.copy(first), pickle.dumps(first)
    after, second = optimiser.step(w, w, first)
    for used in (first, shallow, replace(first)):
        assert used.used and repr(used) == "OptimiserState(step=1, weights=1, used)"
        with pytest.raises(ValueError, match="the state is used up: a step writes into it, so continue with the state that"):
            optimiser.step(w, w, used)
    assert repr(second) == "OptimiserState(step=2, weights=1)"
    for restored in (kept, pickle.loads(stored)):
        again, _ = optimiser.step(w, w, restored)
        assert bool(backend.xp.all(again == after))


def test_a_step_that_is_refused_leaves_the_state_as_it_was():
    w, optimiser = np.ones(3), AdamW(lambda step: -1.0 if step else 0.1)
    w, state = optimiser.step(w, w, optimiser.init(w))
    for gradient in (np.ones(4), w):
        with pytest.raises(ValueError, match="expected"):
            optimiser.step(w, gradient, state)
    assert not state.used
    AdamW(0.1).step(w, w, state)


def test_a_weight_that_is_trained_later_begins_as_others_did():
    """Its moments begin at 0, so their bias is corrected by the number of its own updates."""
    optimiser, model = AdamW(0.1), {"a": np.ones(3), "b": np.ones(3)}
    gradient, state = np.full(3, 0.5), optimiser.init(model)
    for _ in range(5):
        model, state = optimiser.step(model, {"a": gradient, "b": None}, state)
    model, state = optimiser.step(model, {"a": None, "b": gradient}, state)
    alone, _ = optimiser.step(np.ones(3), gradient, optimiser.init(np.ones(3)))
    assert (model["b"] == alone).all() and state.updates == {"a": 5, "b": 1} and state.step == 6
