"""A corpus, and a process that encodes it with workers, to be killed: afterwards the folder must equal that of a quiet run."""

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress

from tiny_models import WORDS

import mha_text as mt

PART_ROWS = 40


def write_corpus(folder, count):
    """Write ``count`` texts as four Parquet files with ids."""
    import pyarrow
    import pyarrow.parquet

    rng = random.Random(0)
    folder.mkdir()
    texts = [" ".join(rng.choices(WORDS[4:], k=rng.randint(0, 6))) for _ in range(count)]
    for start in range(0, count, count // 4):
        ids = [f"id {number}" for number in range(start, start + count // 4)]
        table = pyarrow.table({"id": ids, "text": texts[start : start + count // 4]})
        pyarrow.parquet.write_table(table, folder / f"{start:09}.parquet")


def contents(folder):
    """Return all files of a folder, and what is in them."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def encode(client, corpus, out, model):
    """Encode as the command does."""
    options = {"column": "text", "id": "id", "part_rows": PART_ROWS, "progress": False}
    return mt.encode_corpus(client, corpus, out, model, **options)


def start(corpus, out, model):
    """Start a process that encodes with two workers of its own, in a session that can be killed at once."""
    command = [sys.executable, __file__, str(corpus), str(out), str(model)]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def kill_all(process):
    """Kill a process and all of its workers, if they still run."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    from mha_text.corpus import on_dask

    with on_dask.connected(workers=2, port=0) as client:
        encode(client, *sys.argv[1:])
