"""torch's namespace: array-api-compat's, but for ``take`` on CUDA."""

import array_api_compat.torch as compat
import pytest
import torch

from mha_torch import namespace


class OnCuda(torch.Tensor):
    """A tensor that says it is on CUDA."""

    is_cuda = True


def test_it_has_all_names_of_the_compatible_namespace():
    assert {name for name in dir(compat) if not name.startswith("_")} <= set(dir(namespace))
    assert namespace.float32 is torch.float32 and namespace.int is torch.int


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_on_cuda_is_take(axis):
    """Its gradient adds what belongs to one index: repeated indices, and some below 0."""
    x, index = torch.arange(24.0).reshape(2, 3, 4).requires_grad_(), torch.tensor([1, 0, -1, 1])
    there, here = namespace.take(x.as_subclass(OnCuda), index, axis=axis), namespace.take(x, index, axis=axis)
    assert torch.equal(there.as_subclass(torch.Tensor), here)
    d_out = torch.arange(here.numel() * 1.0).reshape(here.shape)
    (d_there,), (d_here,) = (torch.autograd.grad(out, x, d_out) for out in (there, here))
    assert torch.equal(d_there.as_subclass(torch.Tensor), d_here)


def test_take_needs_no_axis_for_one_axis():
    x = torch.arange(5.0)
    for each in (x, x.as_subclass(OnCuda)):
        assert namespace.take(each, torch.tensor([4, 0])).tolist() == [4.0, 0.0]
        with pytest.raises(ValueError, match="axis must be specified"):
            namespace.take(each[None, :], torch.tensor([0]))


def test_small_integers_are_indices_and_no_mask():
    x = torch.arange(3.0).as_subclass(OnCuda)
    assert namespace.take(x, torch.tensor([1, 0, 1], dtype=torch.uint8)).tolist() == [1.0, 0.0, 1.0]
