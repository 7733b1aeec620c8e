"""The judge of engines passes a right one, and finds each fault in wrong ones; groups that are no engine are refused."""

import numpy as np
import pytest
import rank_threads
from rank_threads import Threads, World, run
from sample_kernels import registered

import mha_core as mha
from mha_conformance.ranks import CHECKS, EngineFault, judge
from mha_core import distributed
from mha_core.plugin import Collectives, hookimpl, register


def judged(engine, size, monkeypatch):
    monkeypatch.setattr(rank_threads, "WAIT", 2)
    return run(size, lambda group: judge(engine(group.world, group.rank), "numpy"))[0]


@pytest.mark.parametrize("size", [2, 3])
def test_a_right_engine_passes_every_check(size, monkeypatch):
    assert judged(Threads, size, monkeypatch) == [list(CHECKS)] * size


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


WRONG = {
    Backwards: "shift",
    Shares: "memory of its own",
    AlwaysReceives: "shift by some ranks",
    LastFirst: "several shifts at once",
    InMemoryOrder: "shift of views",
    InFloat: "shift",
    Rotated: "all_gather",
    Transposed: "all_to_all",
    Shortened: "all_gather_text",
    FromItself: "ranks that differ",
}


@pytest.mark.parametrize("engine", WRONG)
def test_the_judge_finds_the_fault_of_a_wrong_engine(engine, monkeypatch):
    outcomes = judged(engine, 3, monkeypatch)
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
