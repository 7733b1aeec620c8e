"""``mha.value_and_grad`` on torch: by its autograd, detached, also inside itself, and with memory of its own."""

import torch
from torch_options import seeded

import mha_core as mha


def test_value_and_grad_detaches_and_gives_zeros_for_what_is_unused():
    w, unused = seeded(3), seeded(2)

    def loss(arrays):
        y = (arrays[0] ** 2).sum()
        return y, {"y": [y], "layer": mha.LayerNorm(weight=arrays[0], bias=None)}

    with torch.no_grad():
        (value, aux), gradients = mha.value_and_grad(loss, has_aux=True)((w, unused))
    torch.testing.assert_close(gradients, (2 * w, torch.zeros_like(unused)))
    assert not any(x.requires_grad for x in (value, aux["y"][0], aux["layer"].weight, *gradients))
    value, gradients = mha.value_and_grad(lambda arrays: torch.tensor(2.0))((w, unused))
    assert value == 2 and not any(x.any() for x in gradients)
    assert not w.requires_grad


def test_value_and_grad_inside_value_and_grad_is_that_of_torch():
    of_value = lambda a: mha.value_and_grad(lambda b: (b * b * a).sum())(2 * seeded(3))[0]  # noqa: E731
    of_gradient = lambda a: mha.value_and_grad(lambda b: (b**3 * a).sum())(a)[1].sum()  # noqa: E731
    without = lambda a: a.sum() + mha.value_and_grad(lambda b: (b * b).sum())(seeded(3))[0]  # noqa: E731
    x = seeded(3).double()
    for loss, expected in ((of_value, 4 * seeded(3) ** 2), (of_gradient, 9 * x**2), (without, torch.ones(3))):
        torch.testing.assert_close(mha.value_and_grad(loss)(x)[1], expected, check_dtype=False)


def test_gradients_of_value_and_grad_share_no_memory():
    first, second = mha.value_and_grad(lambda pair: (pair[0] + pair[1]).sum())((seeded(3), seeded(3)))[1]
    first += 1.0
    second += 1.0
    torch.testing.assert_close((first, second), (torch.full((3,), 2.0), torch.full((3,), 2.0)), check_dtype=False)
