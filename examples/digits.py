"""Learn to read handwritten digits: a Transformer of one layer, trained from scratch in half a minute.

    python examples/digits.py [--backend numpy|torch] [--steps N] [--seed N]

The images come with scikit-learn: 1797 digits of 8x8 pixels. Each is cut into 16 patches of 2x2 pixels, which the layer reads
like the words of a sentence (Dosovitskiy et al. 2021, section 3.1). Only ``arrays_of`` names an array library: the rest is the
same on all. docs/from_scratch.md explains the model, and shows what its heads attend to.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

BATCH, STEPS = 64, 600


@dataclass(frozen=True, eq=False)
class DigitReader(mha.Layer):
    """Reads an image as a sentence of 16 patches. It has 35 thousand weights."""

    w_patch: Any  # (4, 64), the embedding of a patch of 2x2 pixels
    positions: Any  # (17, 64), which are learned
    encoder: mha.EncoderLayer
    w_digit: Any  # (64, 10)

    @classmethod
    def init(cls, seed):
        rng = np.random.default_rng(seed)

        def random(*shape):
            return rng.normal(scale=0.3, size=shape).astype(np.float32)

        encoder = mha.EncoderLayer.init(d_model=64, num_heads=4, d_ff=128, seed=seed)
        return cls(random(4, 64), random(17, 64), encoder, random(64, 10))

    def embed(self, patches):
        return patches @ self.w_patch + self.positions

    def __call__(self, patches):
        """Patches (..., 17, 4) -> a score for each digit, (..., 10)."""
        return self.encoder(self.embed(patches))[..., 0, :] @ self.w_digit


def patches_of(images):
    """Images (n, 8, 8) -> patches (n, 17, 4), the first of them empty."""
    patches = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4)
    return np.pad(patches / 16 - 0.5, [(0, 0), (1, 0), (0, 0)]).astype(np.float32)


def loss_of(model, patches, digits):
    return mha.cross_entropy(model(patches), digits)


def arrays_of(backend):
    """Return the function that makes a NumPy array one of this backend."""
    if backend == "torch":
        import torch

        return torch.from_numpy
    return np.asarray


def data():
    """Return the images to learn from and every fourth, which is held out, and the digits of both."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        sys.exit("the images of digits come with scikit-learn: pip install scikit-learn")
    images, digits = load_digits(return_X_y=True)
    unseen = np.arange(len(images)) % 4 == 0
    return images[~unseen], images[unseen], digits[~unseen], digits[unseen]


def train(images, digits, *, backend="numpy", steps=STEPS, seed=0, stop=None):
    """Return the trained model, and the loss of each step; ``stop``: end after so many steps of the schedule."""
    array, rng, losses = arrays_of(backend), np.random.default_rng(seed), []
    model, patches = DigitReader.init(seed).to(backend), patches_of(images)
    optimiser = mha.AdamW(mha.warmup_cosine(5e-3, warmup=steps // 10, total=steps), weight_decay=0.3)
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
