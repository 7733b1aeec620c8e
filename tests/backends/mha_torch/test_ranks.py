"""Attention over ranks that are processes of torch.distributed, with gloo: against one process, and a rank that dies."""

import json
import sys

import pytest
from processes import finished, together
from rank_tests.faults import assert_heard

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]

START = """
import datetime, os, sys
import torch, torch.distributed as dist
import mha_core as mha
from mha_core import distributed
from mha_torch.ranks import Ranks
torch.set_num_threads(1)
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
timeout = datetime.timedelta(seconds=int(os.environ.get("SECONDS", 60)))
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
group = Ranks()
torch.manual_seed(0)
query, key, value = (torch.randn(2, h, 21, 8, dtype=torch.float64) for h in (4, 2, 2))
"""

LEARNS = """
from torch.distributed.device_mesh import init_device_mesh
inputs = [x.requires_grad_() for x in (query, key, value, torch.randn(4, dtype=torch.float64))]
d_out, d_lse = torch.randn(2, 4, 21, 8, dtype=torch.float64), torch.randn(2, 4, 21, dtype=torch.float64)
options = {"mask": mha.window(9, 0), "softcap": 3.0, "bias": mha.alibi(4)}
exact = mha.attention_state(*inputs[:3], sink=inputs[3], **options)
exact = torch.autograd.grad([*exact], inputs, [d_out, d_lse])
mesh = init_device_mesh("cpu", (size,))
for layout in ("contiguous", "zigzag"):
    for attend in (distributed.ring_attention, distributed.heads_attention)[: 1 if size == 3 else 2]:
        parts = [distributed.shard(x.detach(), layout, group=mesh).requires_grad_() for x in inputs[:3]]
        sink = inputs[3].detach().requires_grad_()
        state = attend(*parts, group=mesh, layout=layout, sink=sink, **options)
        d = [distributed.shard(x, layout, group=group) for x in (d_out, d_lse[..., None])]
        gradients = torch.autograd.grad([*state], [*parts, sink], [d[0], d[1][..., 0]], retain_graph=True)
        again = torch.autograd.grad(state.lse, [*parts, sink], d[1][..., 0])
        assert all(torch.isfinite(x).all() for x in again)
        for x, whole in zip(gradients[:3], exact):
            torch.testing.assert_close(x, distributed.shard(whole, layout, group=group), rtol=0, atol=1e-12)
        total = gradients[3].clone()
        dist.all_reduce(total)
        torch.testing.assert_close(total, exact[3], rtol=0, atol=1e-12)
try:
    distributed.split_attention(*parts, group=group, layout=layout)
except TypeError as error:
    assert "split_attention has no rule for gradients" in str(error), error
try:
    torch.func.vmap(lambda x: distributed.ring_attention(x, x, x, group=group).out)(parts[0].detach())
except TypeError as error:
    assert "ring_attention has no rule for vmap" in str(error), error
else:
    raise AssertionError("vmap")
del mesh, state, gradients, again
dist.destroy_process_group()
print("learned")
"""

JUDGED = """
from mha_conformance.ranks import judge
print(len(judge(dist.group.WORLD, "torch")), "checks passed")
del group
dist.destroy_process_group()
"""

FAULTY = """
import json
from functools import partial
from rank_tests.faults import outcomes
print(json.dumps(outcomes(partial(distributed.ring_attention, group=group), torch.ones(1, 4, 2), rank, 1)))
del group
dist.destroy_process_group()
"""

DIES = """
import threading
x = torch.ones(1, 8, 4)
def goes():
    stop = threading.Event()
    stop.wait(10) if "stalls" in sys.argv[3] else None
    os._exit(0)
if rank == 1 and "before" in sys.argv[3]:
    goes()
try:
    distributed.agreement.agree(group, lambda: ({"layout": "contiguous"}, {"query": 8, "key": 8}))
    if rank == 1:
        goes()
    group.shift([x], [(x.shape, x)])()
except RuntimeError as error:
    print("raised", str(error)[:200])
    os._exit(0)
"""


def ranks(tmp_path, size, program, **more):
    """Run a program on each rank; return what each prints."""
    store = str(tmp_path / "store")
    return together([[sys.executable, "-c", START + program, str(rank), str(size), store] for rank in range(size)], **more)


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_over_processes_equal_those_of_one(tmp_path, size):
    assert ranks(tmp_path, size, LEARNS) == ["learned\n"] * size


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_judge_of_engines_passes_torch(tmp_path, size):
    assert ranks(tmp_path, size, JUDGED) == ["12 checks passed\n"] * size


def test_a_fault_of_one_rank_is_heard_by_the_others(tmp_path):
    assert_heard([json.loads(line) for line in ranks(tmp_path, 3, FAULTY)], 1)


@pytest.mark.parametrize("how", ["dies before", "dies within", "stalls"])
def test_a_rank_that_is_gone_or_stalls_raises_on_the_others(tmp_path, how):
    folder = tmp_path / how
    folder.mkdir()
    first, second = ranks(folder, 2, DIES, SECONDS="3" if how == "stalls" else "20")
    assert first.startswith("raised") and not second


def test_the_example_runs_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "examples/ring.py"]
    out = finished([*command, "--length", "301"])
    assert "2 ranks, 301 tokens: the greatest difference from one process is" in out
