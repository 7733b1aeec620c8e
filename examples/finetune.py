"""Fine-tune a pretrained text encoder on pairs, on any backend: numbers in words and in figures become neighbours.

    python examples/finetune.py path/to/all-MiniLM-L6-v2 out --backend numpy

Each text should be nearer to its partner than to the partners of the others in its batch: the loss is the cross-entropy of the
similarities (van den Oord et al. 2018, equation 4; Henderson et al. 2017, section 4.4). The result is a directory that
sentence-transformers reads.
"""

import argparse
import random
import time

import mha_core as mha
import mha_text as mt

TEENS = ["ten", "eleven", "twelve", *(f"{name}teen" for name in ("thir", "four", "fif", "six", "seven", "eigh", "nine"))]
ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", *TEENS]
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
BATCH = 32
SHARPNESS = 20.0  # what similarities are multiplied by, as sentence-transformers does


def in_words(n):
    """Return a number below a million in words."""
    if n >= 1000:
        rest = f" {in_words(n % 1000)}" if n % 1000 else ""
        return f"{in_words(n // 1000)} thousand{rest}"
    if n >= 100:
        rest = f" and {in_words(n % 100)}" if n % 100 else ""
        return f"{ONES[n // 100]} hundred{rest}"
    if n < 20:
        return ONES[n]
    return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def loss(encoder, words, figures, labels):
    """Return the cross-entropy of finding the figures of each number among all of the batch, from its words."""
    similarities = encoder(words) @ encoder(figures).T * SHARPNESS
    return mha.cross_entropy(similarities, labels)


def share_found(encoder, numbers):
    """Return the share of numbers in words whose nearest neighbour among all figures is the right one."""
    words = encoder.backend.to_numpy(encoder.encode([in_words(n) for n in numbers]))
    figures = encoder.backend.to_numpy(encoder.encode([str(n) for n in numbers]))
    nearest = (words @ figures.T).argmax(axis=1)
    return sum(index == at for at, index in enumerate(nearest)) / len(numbers)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a directory in sentence-transformers' layout, or a repository")
    parser.add_argument("out", help="the directory to write")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    rng = random.Random(options.seed)
    numbers = rng.sample(range(1_000_000), BATCH * options.steps + 200)
    unseen, seen = numbers[:200], numbers[200:]
    encoder = mt.TextEncoder.from_pretrained(options.model, backend=options.backend)
    print(f"before: {share_found(encoder, unseen):.0%} of 200 unseen numbers found")

    labels = encoder.backend.xp.arange(BATCH)
    optimiser = mha.AdamW(mha.warmup_linear(5e-5, warmup=options.steps // 10, total=options.steps))
    state = optimiser.init(encoder)
    start = time.perf_counter()
    for step in range(options.steps):
        batch = seen[step * BATCH : (step + 1) * BATCH]
        value, gradients = mha.value_and_grad(loss)(encoder, [in_words(n) for n in batch], [str(n) for n in batch], labels)
        encoder, state = optimiser.step(encoder, gradients, state)
        if step % 10 == 0 or step == options.steps - 1:
            print(f"step {step:3}: loss {float(value):.4f}, {time.perf_counter() - start:.0f} s")

    print(f"after: {share_found(encoder, unseen):.0%} of 200 unseen numbers found")
    encoder.save_pretrained(options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
