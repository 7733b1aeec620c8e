"""How tokens are drawn: limits, frequencies, and that a draw depends on seed, text and place alone."""

import math

import numpy as np
import pytest
from needs import Library

from mha_text.models.sampling import GenerationError, Sampling

transformers, torch = Library("transformers"), Library("torch")

LOGITS = np.log(np.asarray([0.1, 0.4, 0.05, 0.25, 0.2]))


def drawn(count=3000, **settings):
    sampling = Sampling(**{"temperature": 1.0, **settings})
    return np.bincount([sampling.token(LOGITS, 0, place) for place in range(count)], minlength=5) / count


def test_temperature_0_takes_the_likeliest_and_the_first_of_equals():
    assert Sampling().token(LOGITS, 0, 0) == 1
    assert Sampling().token(np.asarray([1.0, 3.0, 3.0]), 5, 7) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_probabilities(temperature):
    expected = np.exp(LOGITS / temperature) / np.exp(LOGITS / temperature).sum()
    np.testing.assert_allclose(drawn(temperature=temperature), expected, rtol=0, atol=4 * math.sqrt(0.25 / 3000))


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.3}, [1]),
        ({"top_p": 0.64}, [1, 3]),
        ({"top_p": 0.66}, [1, 3, 4]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.26}, [1, 3, 4]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 3, "top_p": 0.6}, [1, 3]),
        ({"top_k": 2, "top_p": 0.63}, [1, 3]),
        ({"top_k": 2, "top_p": 0.6}, [1]),
    ],
)
def test_limits_leave_the_tokens_that_transformers_leaves(settings, left):
    assert np.flatnonzero(drawn(400, **settings)).tolist() == left
    scores = torch.from_numpy(LOGITS[None])
    kinds = {"top_k": "TopKLogitsWarper", "top_p": "TopPLogitsWarper", "min_p": "MinPLogitsWarper"}
    for name, kind in kinds.items():
        if name in settings:
            scores = getattr(transformers, kind)(settings[name])(None, scores)
    assert torch.isfinite(scores[0]).nonzero()[:, 0].tolist() == left


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(temperature, wrong):
    with pytest.raises(GenerationError, match="the logits hold NaN or infinity: check the model's weights"):
        Sampling(temperature=temperature).token(np.asarray([1.0, wrong, 2.0]), 0, 0)
    assert Sampling(temperature=temperature).token(np.asarray([-math.inf, 3.0, -math.inf]), 0, 0) == 1


def test_a_draw_depends_on_seed_text_and_place():
    sampling, many = Sampling(temperature=1.0), np.zeros(1000)
    first = [sampling.token(many, 2, place) for place in range(20)]
    assert first == [Sampling(temperature=1.0).token(many, 2, place) for place in range(20)]
    for other in (
        [sampling.token(many, 3, place) for place in range(20)],
        [sampling.token(many, 2, place) for place in range(20, 40)],
        [Sampling(temperature=1.0, seed=1).token(many, 2, place) for place in range(20)],
    ):
        assert sum(a == b for a, b in zip(first, other, strict=True)) < 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0; expected a number from 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": 1.0, "top_k": 0}, "top_k is 0; expected an int of at least 1"),
        ({"temperature": 1.0, "top_k": True}, "top_k is True"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p is 1.5; expected a number above 0, and at most 1"),
        ({"temperature": 1.0, "min_p": 0.0}, "min_p is 0.0"),
        ({"min_p": 0.5}, "min_p limits what is drawn, and temperature 0 draws nothing"),
        ({"seed": -1}, "seed is -1; expected an int from 0"),
        ({"seed": 1.5}, "seed is 1.5"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(GenerationError, match=message):
        Sampling(**settings)
