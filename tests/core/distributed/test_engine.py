"""The judge of engines passes a right one, and finds each fault in wrong ones; groups that are no engine are refused."""

import math

import numpy as np
import pytest
from rank_tests import threads as rank_threads
from rank_tests.threads import Threads, World, run
from sample_kernels import registered

import mha_core as mha
from mha_conformance.ranks import CHECKS, EngineFault, judge
from mha_core import distributed
from mha_core.plugin import Collectives, hookimpl, register


def judged(engine, size, monkeypatch):
    monkeypatch.setattr(rank_threads, "WAIT", 2)
    return run(size, lambda group: judge(engine(group.world, group.rank), "numpy"))[0]


class Pieces(Threads):
    """Sends arrays as pieces of 1000 bytes, each in a message of its own."""

    def shift(self, arrays, like):
        box = self.world.boxes[(self.rank + 1) % self.size]
        for x in arrays:
            data = x.tobytes()
            for start in range(0, len(data), 1000):
                box.put(data[start : start + 1000])

        def received(shape, x):
            size, data = math.prod(shape) * x.itemsize, b""
            while len(data) < size:
                data += self.world.boxes[self.rank].get(timeout=2)
            return np.frombuffer(data, x.dtype).reshape(shape)

        return lambda: [received(shape, x) for shape, x in like]


class AllTakePart(Threads):
    """Shifts by an exchange of all ranks; what it returns is in the order of Fortran, and may not be written."""

    def shift(self, arrays, like):
        received = [np.asfortranarray(x) for x in self._exchanged([x.copy() for x in arrays])[self.rank - 1]]
        for x in received:
            x.flags.writeable = False
        return lambda: received


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("engine", [Threads, Pieces, AllTakePart])
def test_a_right_engine_passes_every_check(engine, size, monkeypatch):
    assert judged(engine, size, monkeypatch) == [list(CHECKS)] * size


class Sends(Threads):
    """Sends copies to the next rank, and always receives."""

    step = 1

    def sent(self, arrays):
        return [x.copy() for x in arrays]

    def shift(self, arrays, like):
        self.world.boxes[(self.rank + self.step) % self.size].put(self.sent(arrays))
        return lambda: self.world.boxes[self.rank].get(timeout=2)


class Backwards(Sends):
    step = -1


class Shares(Sends):
    def sent(self, arrays):
        return list(arrays)


class AlwaysReceives(Sends):
    def sent(self, arrays):
        return super().sent(arrays) or [np.zeros(3)]


class LastFirst(Threads):
    def shift(self, arrays, like):
        def receive():
            waiting = []
            while not waiting or not self.world.boxes[self.rank].empty():
                waiting.append(self.world.boxes[self.rank].get(timeout=2))
            for each in waiting[:-1]:
                self.world.boxes[self.rank].put(each)
            return waiting[-1]

        self.world.boxes[(self.rank + 1) % self.size].put([x.copy() for x in arrays])
        if like:
            self.all_gather_text("sent")
        return receive if like else list


class InMemoryOrder(Threads):
    def shift(self, arrays, like):
        return super().shift([x if x.base is None else x.base.reshape(-1)[: x.size].reshape(x.shape) for x in arrays], like)


class InFloat(Threads):
    def shift(self, arrays, like):
        return super().shift([x.astype(np.float64) for x in arrays], [(shape, np.zeros(0)) for shape, _ in like])


class Rotated(Threads):
    def all_gather(self, array, shapes):
        gathered = self._exchanged(array)
        return gathered[1:] + gathered[:1]


class Transposed(Threads):
    def all_to_all(self, arrays, shapes):
        return list(arrays)


class Shortened(Threads):
    def all_gather_text(self, text):
        return [each[:100] for each in super().all_gather_text(text)]


class FromItself(Threads):
    def all_gather_text(self, text):
        super().all_gather_text(text)
        return [text] * self.size


class ThroughFloats(Threads):
    """Sends integers of 32 bits as floats, which have 24."""

    def shift(self, arrays, like):
        with np.errstate(invalid="ignore"):
            return super().shift([x.astype(np.float32).astype(x.dtype) if x.dtype == np.int32 else x for x in arrays], like)


class OneMessageEach(Threads):
    """Sends no more than 4 MB of an array."""

    def all_to_all(self, arrays, shapes):
        return [self._cut(x) for x in super().all_to_all(arrays, shapes)]

    def _cut(self, x):
        x.reshape(-1).view(np.uint8)[2**22 :] = 0
        return x


class OneMessageOfElements(Threads):
    """Sends no more than 2^20 elements of an array."""

    def shift(self, arrays, like):
        arrays = [x.copy() for x in arrays]
        for x in arrays:
            x.reshape(-1)[2**20 :] = 0
        return super().shift(arrays, like)


class MixesFarRanks(Threads):
    """Exchanges what ranks 2 and 3 sent."""

    def all_gather(self, array, shapes):
        gathered = self._exchanged(array)
        return [*gathered[:2], *gathered[2:][::-1]]


class OneBuffer(Threads):
    """Receives all arrays of one shape in the same memory."""

    def all_gather(self, array, shapes):
        self.buffers = vars(self).get("buffers", {})
        gathered = super().all_gather(array, shapes)
        for rank, x in enumerate(gathered):
            gathered[rank] = self.buffers.setdefault((rank, x.shape, x.dtype), x)
            gathered[rank][...] = x
        return gathered


class WithoutStrides(Threads):
    """Gathers what lies in memory from an array's first element on."""

    def all_gather(self, array, shapes):
        base = array if array.base is None else array.base
        return super().all_gather(base.reshape(-1)[: array.size].reshape(array.shape), shapes)


WRONG = {
    ThroughFloats: "shift",
    OneMessageEach: "all_to_all",
    OneMessageOfElements: "shift of any size",
    MixesFarRanks: "all_gather",
    OneBuffer: "memory of its own",
    WithoutStrides: "views",
    Backwards: "shift",
    Shares: "memory of its own",
    AlwaysReceives: "shift by some ranks",
    LastFirst: "several shifts at once",
    InMemoryOrder: "views",
    InFloat: "shift",
    Rotated: "all_gather",
    Transposed: "all_to_all",
    Shortened: "all_gather_text",
    FromItself: "ranks that differ",
}


@pytest.mark.parametrize("engine", WRONG)
def test_the_judge_finds_the_fault_of_a_wrong_engine(engine, monkeypatch):
    outcomes = judged(engine, 4 if engine is MixesFarRanks else 3, monkeypatch)
    assert any(isinstance(error, EngineFault) and f"{WRONG[engine]}: " in str(error) for error in outcomes), outcomes


class Group:
    """A group of another library, which knows nothing of this package."""

    def __init__(self, world, rank):
        self.world, self.rank = world, rank


def as_engine(group):
    return Threads(group.world, group.rank)


class OfGroups:
    """A plugin that makes engines of groups."""

    @staticmethod
    @hookimpl
    def mha_collectives():
        yield Collectives("threads", 1, (f"{Group.__module__}:Group",), f"{__name__}:as_engine")


def test_a_plugin_makes_an_engine_of_its_groups():
    x = np.ones((1, 4, 2))
    with registered(OfGroups):
        states, _ = run(2, lambda g: distributed.ring_attention(x[:, :2], x[:, :2], x[:, :2], group=Group(g.world, g.rank)))
        assert [state.out.shape for state in states] == [(1, 2, 2)] * 2
        assert not [row for row in mha.backends() if row.state == "idle" and "OfGroups" in row.name]
    with pytest.raises(TypeError, match=r"group is Group; expected a group of an installed engine \(.*torch\.distributed: "):
        distributed.ring_attention(x, x, x, group=Group(World(1), 0))


def test_a_wrong_record_is_named():
    for record, message in {
        Collectives("", 1, (), "a:b"): "name of collectives '' is empty",
        Collectives("x", 1, (), "a"): """load of collectives 'x' is 'a'; expected "module:function\"""",
        Collectives("x", 2, (), "a:b"): "Collectives 'x' was written for api 2",
        Collectives("mpi", 1, (), "a:b"): "an engine named 'mpi' is already registered by mha-core",
    }.items():
        plugin = type(
            "Wrong", (), {"mha_collectives": staticmethod(hookimpl(specname="mha_collectives")(lambda r=record: [r]))}
        )
        with pytest.raises(Exception, match=message):
            register(plugin)
