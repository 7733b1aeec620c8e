"""What `make demo` shows: sentences encoded on bare NumPy, those nearest to each other, and those nearest to a question.

    python examples/demo.py MODEL [FILE]

MODEL is the directory of a text encoder. FILE gets the three nearest neighbours of every sentence.
"""

import os
import shlex
import shutil
import sys
import textwrap
import time
from pathlib import Path

import numpy as np

import mha_text as mt

SENTENCES = Path(__file__).parent / "sentences.txt"
QUESTION = "how do bees talk to each other"
WIDTH = min(100, shutil.get_terminal_size().columns)


def shown(label, text):
    return f"  {label:5}  {textwrap.shorten(text, WIDTH - 9, placeholder=' ...')}"


model = sys.argv[1]
file = Path(sys.argv[2] if len(sys.argv) > 2 else "neighbours.txt")

sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
encoder = mt.TextEncoder.from_pretrained(model, backend="numpy")
start = time.perf_counter()
vectors = encoder.encode(sentences)
seconds = time.perf_counter() - start
what = f"encoded {len(sentences)} sentences as {encoder.dim} numbers each, on bare NumPy, in {seconds:.1f} s"
print(textwrap.fill(what, WIDTH), end="\n\n")

cosines = vectors @ vectors.T  # the vectors have length 1
np.fill_diagonal(cosines, -1)
nearest = np.argsort(-cosines, axis=1)[:, :3]
with file.open("w", encoding="utf-8") as lines:
    for at, others in enumerate(nearest):
        print(sentences[at], *(f"  {cosines[at, other]:.3f}  {sentences[other]}" for other in others), sep="\n", file=lines)

print("the nearest pairs:")
best = sorted({(-cosines[at, others[0]], *sorted((at, int(others[0])))) for at, others in enumerate(nearest)})
for distance, first, second in best[:3]:
    print(shown(f"{-distance:.3f}", sentences[first]))
    print(shown("", sentences[second]))

print(f"\n{QUESTION}")
for hits in mt.semantic_search(encoder.encode(QUESTION), vectors, top_k=2):
    for hit in hits:
        print(shown(f"{hit.score:.3f}", sentences[hit.id]))

print(f"\nthe three nearest of each sentence: {file}\n\nnext:")
for name, path, rest in (("PATH", Path(sys.executable).parent, ":$PATH"), ("MHA_MODEL", model, "")):
    print(f"  export {name}=$PWD/{shlex.quote(os.path.relpath(path))}{rest}")
print('  mha attend "The cat sat on the mat because it was tired." --output cat.html')
print("  mha encode examples/sentences.txt --output vectors.npy")
print("  mha explain attention query=1x8x2048x64")
