"""Ranks that fail at random: a random error, in a random call of a function of the library, on a random rank.

All ranks make the same problems, by a seed. After each they tell each other, over the same group, how it ended.
"""

import inspect
import json
import os
import re
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import mha_core as mha
from mha_core.distributed import Sharding, heads_attention, ring_attention, shard, split_attention, unshard
from mha_core.shared import backend_of

ERRORS = (RuntimeError, MemoryError, KeyboardInterrupt, SystemExit)
ROOT = f"{Path(mha.__file__).parent}/"
EXCHANGES = {
    "ops/ranks.py": None,
    "ops/differentiable.py": {"__call__", "named", "pull"},
    "distributed/agreement.py": None,
    "distributed/engine.py": None,
    "distributed/rehearsal.py": None,
    "distributed/sharding.py": {"together", "attention", "attention_to_cache", "rotated", "<lambda>", "cached", "__init__"},
    "distributed/attention.py": {"ring_attention", "split_attention", "_ring", "_ring_gradients", "_returned", "attend"},
    "distributed/heads.py": {"heads_attention", "attend", "gradients", "_by_heads", "_by_positions"},
    "distributed/sequences.py": {"received_at", "sends_at", "source", "zeros"},
    "distributed/shards.py": {"unshard"},
}
"""Functions that decide what is sent next, by module; None: all of them. A rank that fails in one cannot go on sending."""
GUARDED = {"_load", "_unfit"}
"""Functions of ``dispatch`` whose errors are warnings, after which another kernel computes the call."""


class Failing:
    """Counts calls of the library's functions on this thread, and raises an error in the ``at``-th."""

    def __init__(self, engine, error=None, at=0):
        self.engine, self.error, self.at, self.calls, self.where = engine, error, at, 0, ""
        self.within = frozenset()
        """Functions of ``mha_core.distributed``: if given, calls inside them count only."""

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *exception):
        sys.settrace(self.before)

    def trace(self, frame, event, argument):
        if not self.where and self.counts(frame):
            self.calls += 1
            if self.calls == self.at:
                self.where, self.exchanges = f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}", self.engine.exchanges
                raise self.error

    def counts(self, frame):
        """Return whether a function is one in which an error is heard."""
        code = frame.f_code
        if not code.co_filename.startswith(ROOT) or code.co_flags & inspect.CO_GENERATOR:  # one that is closed ignores errors
            return False
        names = EXCHANGES.get("/".join(code.co_filename.rsplit("/", 2)[1:]), ())
        if names is None or re.sub(r"\.<locals>\.<\w+comp>", "", code.co_qualname).rpartition(".")[2] in names:
            return False
        if called_by(frame, "dispatch", GUARDED):
            return False
        return not self.within or called_by(frame, "distributed", self.within)


def called_by(frame, package, names):
    """Return whether a function was called by one of these functions of a package, or is one."""
    while frame is not None:
        if frame.f_code.co_name in names and f"/mha_core/{package}/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


class Counted:
    """An engine that counts its exchanges."""

    def __init__(self, engine):
        self.engine, self.rank, self.size, self.exchanges = engine, engine.rank, engine.size, 0

    def _call(self, verb, *arguments):
        self.exchanges += 1
        return getattr(self.engine, verb)(*arguments)

    def shift(self, *arguments):
        return self._call("shift", *arguments)

    def all_gather(self, *arguments):
        return self._call("all_gather", *arguments)

    def all_to_all(self, *arguments):
        return self._call("all_to_all", *arguments)

    def all_gather_text(self, *arguments):
        return self._call("all_gather_text", *arguments)


def attends(attend, arrays, options, engine, counter):
    attend(*arrays, group=engine, **options)


def learns(attend, arrays, options, engine, counter):
    counter.within = {"on_engine", "agree"}  # elsewhere on the tape an error is not heard
    state, pullback = mha.vjp(partial(attend, group=engine, **options), *arrays)
    pullback(mha.AttentionState(state.out, None))


def gathers(attend, arrays, options, engine, counter):
    unshard(arrays[0], options["layout"], group=engine)


def passes(layer, x, options, engine, counter):
    layer(x, group=Sharding(engine, options["layout"]), mask=options["mask"])


def problem(r, group, of_numpy):
    """Return the words for a random call, and the call: a function of an engine and the counter of the rank."""
    size, layout = group.size, str(r.choice(["contiguous", "zigzag", "striped"]))
    options = {"layout": layout, "mask": [None, mha.causal(), mha.window(3, 1), mha.prefix(5)][r.integers(4)]}
    length, dtype = int(r.integers(size, 4 * size)), np.dtype(["float32", "float64"][r.integers(2)])
    kind = [attends, attends, learns, gathers, passes, passes][r.integers(6)]
    shape = (2, length, 4 * size) if kind is passes else (2, size, length, 4)
    x = of_numpy(r.normal(size=shape).astype(dtype))
    part = shard(x, layout, group=group)
    if kind is passes:
        layer = mha.Encoder.init(d_model=4 * size, num_heads=size, d_ff=6, num_layers=2, seed=0, dtype=dtype)
        if r.integers(2):
            rotary = mha.Rotary.init(max_length=64, dim=4, interleaved=True, dtype=dtype)
            layer = replace(layer.layers[0].attention, rotary=rotary)
        layer = layer.to(backend_of({"x": x}).name)
        return f"{type(layer).__name__} {options}", partial(passes, layer, part, options)
    attend = [ring_attention, heads_attention, split_attention][r.integers(2 if kind is learns else 3)]
    if attend is split_attention:
        options["query_offset"] = 0
    arrays = [x if attend is split_attention else part, part, part]
    return f"{kind.__name__}, {attend.__name__} {options}", partial(kind, attend, arrays, options)


def ended(function, *arguments):
    """Return the error with which a call ends, or None."""
    try:
        function(*arguments)
    except BaseException as error:  # what the ranks compare
        return error
    return None


def fuzz(group, seed, count, of_numpy=np.asarray):
    """Make ``count`` problems on a group of ranks; return a line for each that did not end as it must."""
    faults, rank, size = [], group.rank, group.size
    for number in range(count):
        r = np.random.default_rng([seed, number, size])
        what, call = problem(r, group, of_numpy)
        failing, place, error = int(r.integers(size)), r.random(), ERRORS[r.integers(len(ERRORS))](f"problem {number}")
        engine = Counted(group)
        counter = Failing(engine)
        if rank == failing:
            with counter:
                call(engine, counter)
        else:
            call(engine, counter)
        whole, engine.exchanges = engine.exchanges, 0
        counter = Failing(engine, error, 1 + int(place * counter.calls))
        if rank == failing:
            with counter:
                raised = ended(call, engine, counter)
        else:
            raised = ended(call, engine, counter)
        last = bool(counter.where) and counter.exchanges == whole
        told = [json.loads(x) for x in group.all_gather_text(json.dumps([repr(raised), raised is error, counter.where, last]))]
        _, own, where, last = told[failing]
        heard = repr(mha.distributed.RankFailed(f"rank {failing}: {type(error).__name__}: {error}"))
        others = {text for at, (text, *_) in enumerate(told) if at != failing}
        alone = last or "gathers" in what  # unshard has no exchange after that of the arrays
        if bool(where) != own or (others - {heard if own else "None"} and not (alone and others == {"None"})):
            by = f"{error!r} on rank {failing} in {where}"
            faults.append(f"seed {seed}, problem {number} of {size} ranks, {what}, {by}: {told}")
    return faults


def breaks(make_group, seed, of_numpy=np.asarray):
    """Let the engine of one rank fail in a random exchange; return lines for what did not end as it must.

    The others notice by their timeout, and nobody can use the group any more, but another one.
    """
    group = make_group()
    r = np.random.default_rng(seed)
    failing, at = int(r.integers(group.size)), int(r.integers(2, group.size + 1))
    x = of_numpy(r.normal(size=(1, group.size, 3, 2)))
    exchange, group.begun = group._exchange, 0

    def fails(*arguments):
        group.begun += 1
        if group.rank == failing and group.begun == at:
            raise MemoryError("no memory for messages")
        return exchange(*arguments)

    group._exchange = fails
    first, second = (ended(partial(ring_attention, x, x, x, group=group)) for _ in range(2))
    group = make_group()
    third = ended(partial(ring_attention, x, x, x, group=group))
    own = isinstance(first, MemoryError) if group.rank == failing else isinstance(first, TimeoutError | RuntimeError)
    refused = isinstance(second, RuntimeError) and "cannot be used any more, since an exchange of rank" in str(second)
    told = f"seed {seed}, rank {group.rank}, where {failing} failed in exchange {at}: {first!r}, {second!r}, {third!r}"
    return [] if own and refused and third is None else [told]


def main(engine, seed, count):
    """Run both in a rank that is a process of its own, over groups of two to four ranks; print the faults as JSON."""
    subgroups, make_group, finish, of_numpy = {"gloo": gloo, "mpi": mpi}[engine]()
    faults = [fault for group in subgroups if group is not None for fault in fuzz(group, seed, count, of_numpy)]
    faults += [fault for number in range(2) for fault in breaks(make_group, seed + number, of_numpy)]
    finish(json.dumps([faults, time.process_time()]))


def gloo():
    """Start a rank of torch.distributed: sys.argv holds its number and a file."""
    import datetime

    import torch
    import torch.distributed as dist

    from mha_torch.ranks import Ranks

    torch.set_num_threads(1)
    rank, timeout = int(sys.argv[1]), datetime.timedelta
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=4, timeout=timeout(seconds=60))
    groups = [(size, dist.new_group(list(range(size)), timeout=timeout(seconds=20))) for size in (2, 3, 4)]
    subgroups = [Ranks(group) if rank < size else None for size, group in groups]

    def finish(text):
        print(text, flush=True)
        dist.barrier()
        os._exit(0)  # groups whose messages were lost cannot end in order

    return subgroups, lambda: Ranks(dist.new_group(timeout=timeout(seconds=2))), finish, torch.from_numpy


def mpi():
    """Start a rank of MPI."""
    from mpi4py import MPI

    from mha_mpi.ranks import Ranks

    world = MPI.COMM_WORLD
    parts = [world.Split(0 if world.rank < size else MPI.UNDEFINED) for size in (2, 3, 4)]
    subgroups = [None if part == MPI.COMM_NULL else Ranks(part, timeout=20) for part in parts]

    def finish(text):
        texts = world.gather(text)
        if texts:
            print(*texts, sep="\n", flush=True)
        world.barrier()
        os._exit(0)  # messages that were lost keep MPI from ending in order

    return subgroups, lambda: Ranks(world.Dup(), timeout=2), finish, np.asarray
