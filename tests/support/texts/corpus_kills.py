"""A corpus, and a process that encodes it with a worker, to be killed: afterwards the folder must equal that of a quiet run."""

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress

from tiny_models import WORDS
from written_texts import write

import mha_text as mt


def write_corpus(folder, count):
    """Write ``count`` texts as four Parquet files with ids."""
    rng, each = random.Random(0), count // 4
    for start in range(0, count, each):
        texts = [" ".join(rng.choices(WORDS[4:], k=rng.randint(0, 6))) for _ in range(each)]
        write(folder / f"{start:09}.parquet", texts, [f"id {at}" for at in range(start, start + each)], rows=1000)


def contents(folder):
    """Return all files of a folder, and what is in them."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def table(folder):
    """Return the table in a folder of Parquet files, or in one file."""
    import pyarrow.parquet

    return pyarrow.parquet.read_table(folder)


def encode(client, corpus, out, model):
    """Encode as the command does."""
    options = {"column": "text", "id": "key", "part_rows": 40, "progress": False}
    return mt.encode_corpus(client, corpus, out, model, **options)


def start(corpus, out, model):
    """Start a process that encodes with a worker of its own, in a session that can be killed at once."""
    command = [sys.executable, __file__, str(corpus), str(out), str(model)]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def kill_all(process):
    """Kill a process and all of its workers, if they still run."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    from mha_text.corpus import on_dask

    with on_dask.connected(workers=1, port=0) as client:
        encode(client, *sys.argv[1:])
