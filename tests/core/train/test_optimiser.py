"""Settings, gradients and states that optimisers refuse, each with the message that says what to do."""

from dataclasses import replace

import needs
import numpy as np
import pytest
from refusals import assert_refused_in_words
from small_layers import Pair, classifier, ones_like

import mha_core as mha
from mha_core.dispatch.backend import load
from mha_core.train.optimiser import OptimiserState
from mha_core.train.optimisers import SGD, AdamW


def step(gradients, *, model=None, state=None, optimiser=AdamW()):  # noqa: B008  a value that cannot change
    model = np.ones(2) if model is None else model
    return optimiser.step(model, gradients, OptimiserState() if state is None else state)


def test_settings_that_are_refused():
    refused = {
        "learning_rate is -0.1; expected a number of at least 0": lambda: AdamW(-0.1),
        "learning_rate is nan; expected a finite number": lambda: SGD(float("nan")),
        "learning_rate is str; expected a float": lambda: AdamW("0.1"),
        "beta_1 is 1.0; expected at least 0 and below 1": lambda: AdamW(beta_1=1.0),
        "beta_2 is -0.1; expected at least 0 and below 1": lambda: AdamW(beta_2=-0.1),
        "eps is 0; expected a float above zero": lambda: AdamW(eps=0),
        "weight_decay is -1; expected a number of at least 0": lambda: SGD(0.1, weight_decay=-1),
        "clip_norm is 0.0; expected a float above zero": lambda: AdamW(clip_norm=0.0),
        "clip_norm is inf; expected a float above zero": lambda: AdamW(clip_norm=float("inf")),
        "momentum is 1; expected at least 0 and below 1": lambda: SGD(0.1, momentum=1),
        "nesterov is set, but momentum is 0; expected a momentum above 0": lambda: SGD(0.1, nesterov=True),
        "learning_rate(0) is inf; expected a finite number": lambda: step(np.ones(2), optimiser=AdamW(lambda _: float("inf"))),
        "learning_rate(0) is ndarray; expected a float": lambda: step(np.ones(2), optimiser=SGD(lambda _: np.ones(1))),
        "the model contains no floating array, so there is nothing to train": lambda: AdamW().init((np.arange(3), "a")),
        "two arrays of the model are named 1.0; expected keys that give each its own name": lambda: AdamW().init(
            {"1": [np.ones(2)], "1.0": np.ones(2)}
        ),
    }
    assert_refused_in_words(refused)


def test_gradients_that_are_refused():
    model = classifier()
    gradients, name = ones_like(model), "encoder.attention.w_q"
    attention = gradients.encoder.attention

    def with_w_q(x):
        return lambda: step(
            replace(gradients, encoder=replace(gradients.encoder, attention=replace(attention, w_q=x))), model=model
        )

    refused = {
        f"the gradient of {name} has shape (4, 3); expected that of the weight, (4, 4)": with_w_q(np.ones((4, 3), np.float32)),
        f"the gradient of {name} has dtype float64; expected that of the weight, float32": with_w_q(np.ones((4, 4))),
        f"the gradient of {name} is float; expected an array, or None": with_w_q(1.0),
        "ids has dtype int64, which is not floating; expected None as its gradient": lambda: step(
            replace(gradients, ids=np.ones(3)), model=model
        ),
        "the gradient of model is list; expected Classifier, as in the model, or None": lambda: step([gradients], model=model),
        "the gradient of encoder is FeedForward; expected EncoderLayer, as in the model, or None": lambda: step(
            replace(gradients, encoder=gradients.encoder.feed_forward), model=model
        ),
        "the gradient of heads has 0; expected 0, 1, as in the model": lambda: step(
            replace(gradients, heads=gradients.heads[:1]), model=model
        ),
        "the gradient of model has b; expected a, as in the model": lambda: step({"b": np.ones(2)}, model={"a": np.ones(2)}),
        "there is a gradient for heads.1.1, but the model has NoneType there": lambda: step(
            replace(gradients, heads=(None, Pair(None, np.ones(2)))), model=model
        ),
    }
    assert_refused_in_words(refused)


@needs.installed("array_api_strict")
def test_a_gradient_of_another_library_is_refused():
    x = load("array_api_strict").xp.ones((2,))
    with pytest.raises(mha.BackendMismatch, match=r"^the gradient of model is array_api_strict\.\S+ of shape \(2,\), .*, but"):
        step(x)


def test_states_that_are_refused():
    w = np.ones(2)
    of_sgd, of_adamw = (step(w, optimiser=optimiser)[1] for optimiser in (SGD(0.1), AdamW()))
    moment = "the state has a moment of model that is numpy.ndarray of shape (2,), float64, on cpu, but the weight is "
    refused = {
        "state is dict; expected what init or the last step returned": lambda: step(w, state={}),
        "the state has moments of model, but the model has no array of this name: write init(model)": lambda: step(
            [w], model=[w], state=of_adamw
        ),
        f"the state has 0 moments of model, but {AdamW()} needs 2: write init(model)": lambda: step(w, state=of_sgd),
        f"{moment}numpy.ndarray of shape (3,), float64, on cpu: write init(model)": lambda: step(
            np.ones(3), model=np.ones(3), state=of_adamw
        ),
        f"{moment}numpy.ndarray of shape (2,), float32, on cpu: write init(model)": lambda: step(
            w.astype(np.float32), model=w.astype(np.float32), state=of_adamw
        ),
    }
    assert_refused_in_words(refused)
