"""Runs of encode_corpus that are killed at random points and in the middle of random writes, and then go on.

``python killed_runs.py FOLDER COUNT SEED`` prints how many runs were killed, if each folder then equals that of a quiet run.
"""

import os
import random
import resource
import shutil
import signal
import sys
from itertools import count
from pathlib import Path

from corpus_kills import contents
from tiny_models import write_tiny_model
from written_texts import TEXTS, write

import mha_text as mt


def encode(folder, encoder, out):
    options = {"column": "text", "id": "key", "part_rows": 4, "progress": False, "skip_invalid": True}
    return mt.encode_corpus(None, folder / "[ab].jsonl", out, encoder, **options)


def in_child(function):
    """Call a function in a forked process, and return the signal that killed it; 0 if none did."""
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a run raised an exception"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def counted(function, last=None):
    """Call a function, and kill this process before its call number ``last`` of any function; return the number of calls."""
    calls = count()

    def watch(*_):
        if next(calls) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    function()
    sys.setprofile(None)
    return next(calls)


def limited(function, size):
    """Call a function, and be killed by the system in a write that makes a file longer than this many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    function()


def main(folder, runs, seed):
    draw, killed = random.Random(seed), 0
    write(folder / "a.jsonl", TEXTS, [f"id {at}" for at in range(23)])
    write(folder / "b.jsonl", TEXTS[:10], [f"id {at}" for at in range(23, 33)])
    with (folder / "b.jsonl").open("a") as file:
        file.write('{"text": 3, "key": "no text"}\n')
    encoder = mt.TextEncoder.from_pretrained(write_tiny_model(folder / "tiny"), backend="numpy")
    in_child(lambda: (folder / "calls").write_text(str(counted(lambda: encode(folder, encoder, folder / "quiet")))))
    quiet, calls = contents(folder / "quiet"), int((folder / "calls").read_text())
    largest = max(map(len, quiet.values()))
    for _ in range(runs):
        shutil.rmtree(folder / "out", ignore_errors=True)
        how = []
        for _ in range(draw.randrange(1, 4)):
            if draw.random() < 0.3:
                size = draw.randrange(largest)
                how.append(f"write beyond {size} bytes")
                signalled = in_child(lambda: limited(lambda: encode(folder, encoder, folder / "out"), size))  # noqa: B023
            else:
                last = draw.randrange(calls)
                how.append(f"call {last} of {calls}")
                signalled = in_child(lambda: counted(lambda: encode(folder, encoder, folder / "out"), last))  # noqa: B023
            killed += signalled != 0
        assert in_child(lambda: encode(folder, encoder, folder / "out")) == 0, how
        assert contents(folder / "out") == quiet, how
    print(f"{killed} runs were killed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
