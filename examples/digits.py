"""Learn to read handwritten digits: a small Transformer encoder, trained from scratch in less than a minute.

    python examples/digits.py [--backend numpy|torch] [--steps N] [--seed N]

The images come with scikit-learn: 1797 digits of 8x8 pixels. Each is cut into 16 patches of 2x2 pixels, which the encoder reads
like the words of a sentence (Dosovitskiy et al. 2021). Only ``arrays_of`` names an array library: the rest is the same on all.
"""

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import mha_core as mha
from mha_core.layers.base import Layer

D_MODEL, BATCH, STEPS = 64, 64, 800


@dataclass(frozen=True, eq=False)
class DigitReader(Layer):
    """A model is a frozen dataclass of arrays and of other layers. This one has 69 thousand weights."""

    w_patch: Any
    b_patch: Any
    positions: Any
    encoder: mha.Encoder
    w_digit: Any
    b_digit: Any

    def __call__(self, patches):
        """Patches (..., 17, 4) -> a score for each digit, (..., 10)."""
        words = mha.linear(patches, self.w_patch, self.b_patch) + self.positions
        return mha.linear(self.encoder(words)[..., 0, :], self.w_digit, self.b_digit)


def new_model(seed):
    rng = np.random.default_rng(seed)

    def random(*shape, scale):
        return (scale * rng.normal(size=shape)).astype(np.float32)

    return DigitReader(
        w_patch=random(4, D_MODEL, scale=0.5),
        b_patch=np.zeros(D_MODEL, np.float32),
        positions=random(17, D_MODEL, scale=0.5),
        encoder=mha.Encoder.init(
            d_model=D_MODEL, num_heads=4, d_ff=2 * D_MODEL, num_layers=2, norm_first=True, activation="gelu", seed=seed
        ),
        w_digit=random(D_MODEL, 10, scale=0.1),
        b_digit=np.zeros(10, np.float32),
    )


def patches_of(images):
    """Images (n, 8, 8) -> patches (n, 17, 4). The first is empty: there the encoder gathers what the others show."""
    patches = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4)
    return np.pad(patches / 16 - 0.5, [(0, 0), (1, 0), (0, 0)]).astype(np.float32)


def arrays_of(backend):
    """Return the function that makes a NumPy array one of this backend."""
    if backend == "torch":
        import torch

        return torch.from_numpy
    return np.asarray


def data():
    """Return the images to learn from and those held out, and the digits of both."""
    images, digits = load_digits(return_X_y=True)
    return train_test_split(images, digits, test_size=0.25, random_state=0, stratify=digits)


def loss_of(model, patches, digits):
    return mha.cross_entropy(model(patches), digits)


def train(images, digits, *, backend="numpy", steps=STEPS, seed=0, stop=None):
    """Return the trained model, and the loss of each step; ``stop``: end after so many steps of the schedule."""
    array, rng, losses = arrays_of(backend), np.random.default_rng(seed), []
    model, patches = new_model(seed).to(backend), patches_of(images)
    optimiser = mha.AdamW(mha.warmup_cosine(3e-3, warmup=steps // 10, total=steps), weight_decay=0.3, clip_norm=1.0)
    state = optimiser.init(model)
    for step in range(steps if stop is None else stop):
        batch = rng.choice(len(images), size=BATCH, replace=False)
        loss, gradients = mha.value_and_grad(loss_of)(model, array(patches[batch]), array(digits[batch]))
        model, state = optimiser.step(model, gradients, state)
        losses.append(float(loss))
        if step % 100 == 99:
            print(f"step {step + 1}: loss {np.mean(losses[-100:]):.4f}")
    return model, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="numpy", choices=["numpy", "torch"])
    parser.add_argument("--steps", default=STEPS, type=int)
    parser.add_argument("--seed", default=0, type=int)
    options = parser.parse_args()

    mha.set_num_threads(1)  # products as small as these are computed before a second thread has woken up
    seen, unseen, seen_digits, unseen_digits = data()
    start = time.perf_counter()
    model, _ = train(seen, seen_digits, **vars(options))
    seconds = time.perf_counter() - start

    scores = np.asarray(model(arrays_of(options.backend)(patches_of(unseen))))
    right = np.mean(scores.argmax(axis=-1) == unseen_digits)
    print(f"{right:.1%} of {len(unseen)} digits that it never saw are read right, after {seconds:.1f} s on {options.backend}")


if __name__ == "__main__":
    main()
