"""Calls that are wrong on one rank before its first exchange, each with this rank's error; others hear of it at once."""

import numpy as np
import torch

import mha_core as mha


def _another_library(x):
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x.numpy()


def _recorded(attend, x):
    return mha.vjp(lambda y: attend(y, x, x), x)


FAULTS = {
    "a wrong type": (lambda attend, x: attend(x.tolist(), x, x), "TypeError: query is list; expected an array"),
    "no array": (lambda attend, x: attend(x, None, x), "TypeError: key is NoneType; expected an array"),
    "another library": (lambda attend, x: attend(x, x, _another_library(x)), "BackendMismatch: value is a "),
    "booleans": (lambda attend, x: attend(x > 0, x > 0, x > 0), "TypeError: query has dtype "),
    "an unknown option": (lambda attend, x: attend(x, x, x, is_causal=True), "TypeError: there is no option is_causal"),
    "a bias with gradients": (
        lambda attend, x: mha.vjp(lambda bias: attend(x, x, x, bias=bias), x[0, :, :1]),
        "TypeError: ring_attention has no rule for gradients of bias: pass an array whose gradient is not recorded",
    ),
    "an interrupt": (lambda attend, x: attend(Interrupts(), x, x), "KeyboardInterrupt: "),
}
DIFFERS = "RanksDiffer: gradients is not the same on all ranks: "


class Interrupts:
    """An argument whose user presses Ctrl-C while it is checked."""

    @property
    def __class__(self):
        raise KeyboardInterrupt


def outcome(function, *arguments):
    """Return the error of a call, as a text; "" if it succeeds."""
    try:
        function(*arguments)
    except BaseException as error:  # what the caller compares
        return f"{type(error).__name__}: {error}"
    return ""


def outcomes(attend, x, rank, failing):
    """Return the outcome on this rank of each fault of another rank, of gradients that one rank records, and of a right call.

    ``attend`` is ``ring_attention`` with its group.
    """
    calls = [*(call for call, _ in FAULTS.values()), _recorded]
    each = [outcome(call, attend, x) if rank == failing else outcome(attend, x, x, x) for call in calls]
    return [*each, outcome(attend, x, x, x)]


def assert_heard(received, failing):
    """Assert that of the outcomes of all ranks each is what ``FAULTS`` says."""
    for rank, of_rank in enumerate(received):
        for (name, (_, message)), text in zip(FAULTS.items(), of_rank[: len(FAULTS)], strict=True):
            expected = message if rank == failing else f"RankFailed: rank {failing}: {message}"
            assert text.startswith(expected), f"{name}, on rank {rank}: {text!r}; expected {expected!r}"
        differs, right = of_rank[len(FAULTS) :]
        assert differs.startswith(DIFFERS) and f"recorded on rank {failing}" in differs, differs
        assert right == "", right
