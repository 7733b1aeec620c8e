"""Runs of ``mha encode`` in which a process is killed at a random moment: afterwards the folder must equal that of a quiet run.

``python tests/corpus_kills.py RUNS [SEED]`` prints how many runs there were of each kind, and fails at the first difference.
Either a worker is killed, and the others go on; or the command is, which runs the scheduler, alone or with all workers, and the
next run goes on.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

WORDS = ["a", "bird", "sings", "in", "the", "tree", "at", "dawn"]
PART_ROWS = 40


def write_corpus(folder, count=4000, seed=0):
    """Write ``count`` texts as Parquet files with ids; return the folder."""
    import pyarrow
    import pyarrow.parquet

    rng = random.Random(seed)
    folder.mkdir()
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(0, 6))) for _ in range(count)]
    for at, start in enumerate(range(0, count, count // 4)):
        ids = [f"id {number}" for number in range(start, start + count // 4)]
        pyarrow.parquet.write_table(
            pyarrow.table({"id": ids, "text": texts[start : start + count // 4]}), folder / f"{at}.parquet"
        )
    return folder


def contents(folder):
    """Return all files of a folder, and what is in them."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def encode(client, corpus, out, model):
    """Encode as the command does."""
    import mha_core as mha

    options = {"column": "text", "id": "id", "part_rows": PART_ROWS, "progress": False}
    return mha.encode_corpus(client, corpus, out, model, **options)


def start(corpus, out, model):
    """Start a process that encodes with two workers of its own, in a session that can be killed at once."""
    command = [sys.executable, __file__, "encode", str(corpus), str(out), str(model)]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def kill_all(process):
    """Kill a process and all of its workers, if they still run."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_a_worker(pids, rng):
    """Kill one of the workers; its nanny starts another one."""
    os.kill(rng.choice(pids), signal.SIGKILL)


def pids_of_workers(client):
    """Return the processes of both workers, once they run: Dask does not start one again that was killed while it started."""
    while len(pids := sorted(client.run(os.getpid, on_error="ignore").values())) < 2:
        time.sleep(0.05)
    return pids


def main(runs, seed):
    from conftest import write_tiny_model
    from mha_core.corpus import on_dask

    rng, counts = random.Random(seed), Counter()
    print("seed", seed)
    with TemporaryDirectory() as name, on_dask.connected(workers=2, port=0) as client:
        folder = Path(name)
        model, corpus = write_tiny_model(folder / "model"), write_corpus(folder / "corpus")
        encode(client, corpus, folder / "warm", model)
        begun = time.monotonic()
        encode(client, corpus, folder / "quiet", model)
        long, quiet = time.monotonic() - begun, contents(folder / "quiet")
        print(f"{len(quiet)} files in {long:.1f} s")
        for run in range(runs):
            out = folder / f"run {run}"
            kind = rng.choices(("worker", "command", "all"), (2, 1, 1))[0]
            if kind == "worker":
                killer = threading.Timer(rng.uniform(0, long), kill_a_worker, (pids_of_workers(client), rng))
                killer.start()
                encode(client, corpus, out, model)
                killer.join()
                counts["a worker was killed"] += 1
            else:
                process = start(corpus, out, model)
                deadline = time.monotonic() + 60
                while not any(out.glob("part-*")) and time.monotonic() < deadline and process.poll() is None:
                    time.sleep(0.01)
                time.sleep(rng.uniform(0, long))
                if kind == "all":
                    kill_all(process)
                else:
                    process.kill()  # its workers end once they miss the scheduler
                ended = (out / "_SUCCESS").exists()
                counts[f"{'all were' if kind == 'all' else 'scheduler and command were'} killed{' at the end' * ended}"] += 1
                counts["parts before the next run"] += len(list(out.glob("part-*")))
                encode(client, corpus, out, model)
                kill_all(process)
            found = contents(out)
            different = sorted(each for each in quiet.keys() | found.keys() if quiet.get(each) != found.get(each))
            assert not different, f"run {run}: {different}"
            subprocess.run(["rm", "-rf", str(out)], check=True)
            print(run + 1, dict(counts), end="\r", flush=True)
    print(f"{runs} runs, no difference:", dict(counts))


if __name__ == "__main__":
    if sys.argv[1] == "encode":
        from mha_core.corpus import on_dask

        with on_dask.connected(workers=2, port=0) as own:
            encode(own, *sys.argv[2:])
    else:
        main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6))
