"""NumPy's own functions on the tape, over their whole signatures: NumPy's value and derivative, or an error that names it."""

import inspect

import numpy as np
import pytest
from properties import given, settings, st

import mha_core as mha
from mha_core.autodiff import numpy_functions

REDUCTIONS = ["sum", "mean", "max", "min", "prod", "var", "std", "amax", "amin"]
SELECTIONS = ["cumsum", "cumulative_sum", "take", "take_along_axis", "clip", "where", "tril", "triu"]
SHAPES = [
    "reshape",
    "transpose",
    "permute_dims",
    "swapaxes",
    "moveaxis",
    "squeeze",
    "expand_dims",
    "broadcast_to",
    "flip",
    "roll",
]
OTHERS = ["concatenate", "concat", "stack", "tensordot", "astype", "matrix_transpose"]
NAMES = [*REDUCTIONS, *SELECTIONS, *SHAPES, *OTHERS]
GIVEN = {"a", "m", "x", "arr", "arrays", "array", "condition"}
"""Names of first parameters: the array, or arrays made of it."""


def values_of(name, shape):
    """Return a strategy of values for each parameter of NumPy's functions, right and wrong ones, for an array of this shape."""
    n = len(shape)
    one_axis = st.integers(-n - 1, n) if n else st.just(0)
    axes = st.none() | one_axis | st.lists(one_axis, max_size=3).map(tuple)
    size = int(np.prod(shape))
    places = st.integers(-max(shape, default=1), max(shape, default=1) - 1)
    several = st.lists(places, max_size=4)
    return {
        "axis": axes if name in (*REDUCTIONS, *SHAPES) else st.none() | one_axis,
        **dict.fromkeys(("axis1", "axis2"), one_axis),
        **dict.fromkeys(("source", "destination"), one_axis | st.lists(one_axis, min_size=2, max_size=2).map(tuple)),
        "axes": st.integers(0, n) if name == "tensordot" else st.none() | st.permutations(range(n)),
        "b": st.just("b"),
        "dtype": st.sampled_from([np.float64, float, "float64", np.int64]),
        "out": st.just("out"),
        **dict.fromkeys(("keepdims", "include_initial", "subok"), st.booleans()),
        **dict.fromkeys(("initial", "mean"), st.just(0.25)),
        "where": st.just(True),
        **dict.fromkeys(("ddof", "correction"), st.sampled_from([0, 1, 0.5])),
        "indices": places | several.map(lambda x: np.asarray(x, int)) | st.lists(several, min_size=1, max_size=2)
        if name == "take"
        else st.just("like"),
        "mode": st.sampled_from(["raise", "wrap", "clip"]),
        "shape": st.sampled_from([size, -1, (1, size), (size, 1), (2, -1), (2, *shape)]),
        "order": st.sampled_from("CF"),
        "copy": st.sampled_from([False, True]),
        **dict.fromkeys(("a_min", "a_max", "min", "max"), st.none() | st.sampled_from([-0.5, 0.5, "half"])),
        **dict.fromkeys(("x", "y"), st.sampled_from([0.0, "half"])),
        "k": st.integers(-2, 2),
        "shift": st.integers(-3, 3) | st.lists(st.integers(-3, 3), min_size=2, max_size=2).map(tuple),
        "casting": st.just("same_kind"),
        "device": st.none(),
        "subok": st.booleans(),
    }


@st.composite
def calls(draw):
    """A call: the name of a function, the array, arguments by position and by name."""
    name = draw(st.sampled_from(NAMES))
    sizes, least = st.integers(name not in ("sum", "cumsum"), 3), name not in REDUCTIONS  # NumPy gives scalars axes
    shape = tuple(draw(st.lists(sizes, min_size=least, max_size=3)))
    known = values_of(name, shape)
    first, *parameters = [p for p in inspect.signature(getattr(np, name)).parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert first.name in GIVEN
    by_position, by_name, ended = [], {}, False
    for p in parameters:
        required = p.default is p.empty
        if not required and draw(st.booleans()):
            ended = True
            continue
        value = draw(known[p.name])
        if not ended and p.kind is not p.KEYWORD_ONLY and (p.kind is p.POSITIONAL_ONLY or draw(st.booleans())):
            by_position.append(value)
        elif p.kind is not p.POSITIONAL_ONLY:
            by_name[p.name], ended = value, True
    return name, np.random.default_rng(draw(st.integers(0, 9))).standard_normal(shape), by_position, by_name


def run(name, x, by_position, by_name):
    """Call NumPy's function; words stand for arrays made of x."""
    plain = getattr(x, "value", x)
    without_out = (
        [None if isinstance(value, str) and value == "out" else value for value in by_position],
        by_name | ({"out": None} if "out" in by_name else {}),
    )
    made = {
        "half": lambda: 0.5 * x,
        "b": lambda: np.transpose(x) * 2,
        "out": lambda: np.empty_like(run(name, plain, *without_out)),
        "like": lambda: np.broadcast_to(np.arange(x.size) % max(x.shape, default=1) - 1, (x.size,)).reshape(x.shape),
    }
    real = lambda value: made[value]() if isinstance(value, str) and value in made else value  # noqa: E731
    first = {"arrays": lambda: [x, x * 3], "condition": lambda: np.arange(x.size).reshape(x.shape) % 2 == 0}
    parameter = next(iter(inspect.signature(getattr(np, name)).parameters))
    start = first.get(parameter, lambda: x)()
    return getattr(np, name)(start, *map(real, by_position), **{key: real(value) for key, value in by_name.items()})


@settings(max_examples=2000)
@given(calls())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's own, about means of nothing
def test_it_is_numpys_function_or_it_is_refused_by_name(call):
    name, x, by_position, by_name = call
    try:
        plain = np.asarray(run(*call))
    except (TypeError, ValueError, IndexError):
        with pytest.raises((TypeError, ValueError, IndexError)):
            mha.value_and_grad(lambda x: np.sum(run(name, x, by_position, by_name)))(x)
        return
    towards = np.random.default_rng(1).standard_normal(plain.shape)

    def loss(x):
        return np.sum(towards * run(name, x, by_position, by_name))

    if without_rule(name, by_position, by_name):
        with pytest.raises(TypeError, match=getattr(np, name).__name__):
            mha.value_and_grad(loss)(x)
        return
    value, gradient = mha.value_and_grad(loss)(x)
    np.testing.assert_allclose(value, loss(x), rtol=1e-12)
    direction, step = np.random.default_rng(2).standard_normal(x.shape), 1e-6
    expected = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-5, atol=1e-7)


def without_rule(name, by_position, by_name):
    """Return whether a call gives a parameter, other than its default, that has no rule."""
    function = getattr(np, name)
    signature = inspect.signature(function)
    own = numpy_functions._OWN.get(function.__name__)
    known = {"x"} if own is None else inspect.signature(own).parameters
    given = signature.bind(None, *by_position, **by_name).arguments
    return any(key not in known and value is not signature.parameters[key].default for key, value in given.items())
