"""Functions as users write them for torch's FlexAttention: masks of four indices, scores of a score and four indices.

Each entry takes ``array``, which makes a library's array of one of NumPy, and returns a function, which reads such arrays from
its surroundings. ``MASKS`` and ``SCORES`` use operators and indexing alone; ``TORCH_MASKS`` and ``TORCH_SCORES`` call torch.
"""

from functools import partial

import numpy as np

LENGTH = 80
WIDTH = 10
"""The pixels in a row of an image, for masks of neighbourhoods; an image has LENGTH pixels."""
HEADS = 2
RNG = np.random.default_rng(0)
DOCUMENTS = np.repeat([0, 1, 2, 3], [30, 5, 25, 20])
PARENTS = [-1, *(int(RNG.integers(0, at)) for at in range(1, LENGTH))]
"""The parent of each node of a tree, whose root is node 0."""


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def generate_sliding_window(size):
    def sliding_window(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= size)

    return sliding_window


def generate_dilated_window(size, dilation):
    def dilated_window(b, h, q_idx, kv_idx):
        distance = q_idx - kv_idx
        return (distance >= 0) & (distance <= size * dilation) & (distance % dilation == 0)

    return dilated_window


def generate_prefix_lm(length):
    return lambda b, h, q_idx, kv_idx: (kv_idx < length) | (kv_idx <= q_idx)


def generate_document_mask(inside, document_id, starts):
    """Apply a mask to the positions within each document."""

    def document_mask(b, h, q_idx, kv_idx):
        first = starts[document_id[q_idx]]
        same = document_id[q_idx] == document_id[kv_idx]
        return same & inside(b, h, q_idx - first, kv_idx - first)

    return document_mask


def generate_neighbourhood(width, reach):
    """Pixels at most ``reach`` rows and columns away."""

    def neighbourhood(b, h, q_idx, kv_idx):
        rows, columns = q_idx // width - kv_idx // width, q_idx % width - kv_idx % width
        return (rows * rows <= reach * reach) & (columns * columns <= reach * reach)

    return neighbourhood


def ancestors(array):
    """A node sees itself and its ancestors: nodes that a walk of the tree enters before it, and leaves after it."""
    children = [[child for child, parent in enumerate(PARENTS) if parent == at] for at in range(LENGTH)]
    enter, leave, steps = np.zeros(LENGTH, dtype=np.int64), np.zeros(LENGTH, dtype=np.int64), iter(range(2 * LENGTH))

    def walk(at):
        enter[at] = next(steps)
        for child in children[at]:
            walk(child)
        leave[at] = next(steps)

    walk(0)
    enter, leave = array(enter), array(leave)
    return lambda b, h, q_idx, kv_idx: (enter[kv_idx] <= enter[q_idx]) & (leave[q_idx] <= leave[kv_idx])


def lengths(array):
    """The keys of padded sequences, whose lengths are read by the number of the batch element."""
    length = array(np.asarray([LENGTH - 7, 12]))
    return lambda b, h, q_idx, kv_idx: kv_idx < length[b]


def generate_window_by_head(sizes):
    return lambda b, h, q_idx, kv_idx: q_idx - kv_idx < sizes[h]


def strided(stride, b, h, q_idx, kv_idx):
    return (q_idx - kv_idx) % stride == 0


MASKS = {
    "causal": lambda array: causal,
    "sliding window": lambda array: generate_sliding_window(7),
    "dilated window": lambda array: generate_dilated_window(5, 3),
    "prefix LM": lambda array: generate_prefix_lm(20),
    "documents": lambda array: generate_document_mask(causal, array(DOCUMENTS), array(np.asarray([0, 30, 35, 60]))),
    "neighbourhood": lambda array: generate_neighbourhood(WIDTH, 2),
    "ancestors": ancestors,
    "lengths": lengths,
    "window by head": lambda array: generate_window_by_head(array(np.asarray([3, 30]))),
    "partial": lambda array: partial(strided, 4),
}


def alibi(array):
    slopes = array(2.0 ** -np.arange(1, HEADS + 1))

    def alibi_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return alibi_mod


def relative(array):
    """A number for each head and distance."""
    table = array(np.sin(np.arange(HEADS * (2.0 * LENGTH - 1))).reshape(HEADS, -1))
    return lambda score, b, h, q_idx, kv_idx: score + table[h, kv_idx - q_idx + LENGTH - 1]


def boosted(array):
    """Scores of the same document are doubled, and those of the second sequence are lower for odd keys."""
    document_id, shift = array(DOCUMENTS), array(np.asarray([0.0, 0.5]))

    def boost(score, b, h, q_idx, kv_idx):
        same = document_id[q_idx] == document_id[kv_idx]
        return score + score * same - shift[b] * (kv_idx % 2)

    return boost


SCORES = {
    "nothing": lambda array: lambda score, b, h, q_idx, kv_idx: score,
    "positions": lambda array: lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx),
    "alibi": alibi,
    "relative": relative,
    "boosted": boosted,
    "rational cap": lambda array: lambda score, b, h, q_idx, kv_idx: score / (1 + score * score) ** 0.5,
}


def neighbourhood_of_torch(array):
    """Windows that are moved inside of the image at its edges."""
    import torch

    height, reach = LENGTH // WIDTH, 2

    def natten(b, h, q_idx, kv_idx):
        row = (q_idx // WIDTH).clamp(reach, height - 1 - reach)
        column = torch.clamp(q_idx % WIDTH, reach, WIDTH - 1 - reach)
        return ((row - kv_idx // WIDTH).abs() <= reach) & ((column - kv_idx % WIDTH).abs() <= reach)

    return natten


def combined(array):
    from torch.nn.attention.flex_attention import and_masks, or_masks

    return or_masks(and_masks(causal, generate_sliding_window(9)), generate_prefix_lm(4))


def by_head(array):
    import torch

    return lambda b, h, q_idx, kv_idx: torch.where(h % 2 == 0, q_idx >= kv_idx, kv_idx >= q_idx)


TORCH_MASKS = {"neighbourhood, clamped": neighbourhood_of_torch, "combined": combined, "by head": by_head}


def softcap(array):
    import torch

    return lambda score, b, h, q_idx, kv_idx: 2 * torch.tanh(score / 2)


def causal_score(array):
    """A mask that is written into the scores."""
    import torch

    return lambda score, b, h, q_idx, kv_idx: torch.where(q_idx >= kv_idx, score, -float("inf"))


def near(array):
    """Scores of near keys are raised."""
    import torch

    return lambda score, b, h, q_idx, kv_idx: score + torch.exp(-torch.abs(q_idx - kv_idx) / (h + 1))


TORCH_SCORES = {"softcap": softcap, "causal score": causal_score, "near": near}
