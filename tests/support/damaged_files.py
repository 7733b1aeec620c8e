"""Damage to files at random, each of which must then be read as if nothing had happened, or refused in one line."""

import copy
import json
import math

import numpy as np

NESTED = {1, 2}  # no JSON, and equal after a copy
"""Stands for JSON nested so deeply that no parser reads it."""
VALUES = [
    *(None, True, False, 0, 1, -1, 3, 100_000_000, 10**20, 0.5, -0.5, math.nan, math.inf, -math.inf),
    *("", "x", "mean", "A" * 10_000, [], {}, [1], ["x"], {"a": 1}, {"array": None}, NESTED),
]


def places(value, path=()):
    """Every place in a JSON value, as the path of keys and indices to it."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def damaged_json(text, rng):
    """JSON with one value replaced, removed or renamed."""
    whole = {"": json.loads(text)}  # so that the value as a whole has a place too
    every = list(places(whole))[1:]
    *path, last = every[rng.integers(len(every))]
    inside = whole
    for key in path:
        inside = inside[key]
    choice = rng.random()
    if choice < 0.8 or not path:
        inside[last] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    elif choice < 0.9 or not isinstance(inside, dict):
        del inside[last]
    else:
        inside["renamed"] = inside.pop(last)
    return json.dumps(whole[""], default=lambda _: "NESTED").replace('"NESTED"', "[" * 100_000 + "]" * 100_000)


def damaged_bytes(data, rng):
    """Bytes that were cut, changed, removed, repeated or replaced; for half of them near the start."""
    at = int(rng.integers(len(data) if rng.random() < 0.5 else min(200, len(data))))
    size = int(rng.integers(1, 20))
    noise = rng.integers(0, 256, size=size, dtype=np.uint8).tobytes()
    kinds = [data[:at], data[:at] + noise + data[at + size :], data[:at] + noise + data[at:], data[:at] + data[at + size :]]
    kinds += [data[:at] + data[at : at + size] * 50 + data[at:], noise, b""]
    return kinds[rng.integers(len(kinds))]


def refusals(path, name, damaged, read, errors):
    """Return how often ``read`` raises one of ``errors``, each in one line that contains a name, for files written to ``path``.

    ``damaged``: the contents of the files; ``read`` may fail in no other way.
    """
    messages = []
    for content in damaged:
        path.write_bytes(content)
        try:
            with np.errstate(all="ignore"):  # damaged weights may overflow
                read()
        except errors as error:
            messages.append(str(error))
    for message in messages:
        assert "\n" not in message and name in message, message
    return len(messages)
