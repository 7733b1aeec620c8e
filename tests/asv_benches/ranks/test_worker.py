"""``make bench-ranks``: what it measures is printed and written, and its model gives what can be worked out by hand."""

import json
import sys

import pytest
from processes import MPIEXEC, finished
from project import BENCHES, PATHS

from ranks.model import Machine, seconds, share_of_ideal

MACHINE = Machine(seconds_per_pair=1e-9, bandwidth=4096e6, latency=1e-3)  # a position of keys and values has 4096 bytes: 1 us


def test_a_step_takes_the_greater_of_its_block_and_its_bytes_and_the_latency():
    assert seconds(MACHINE, 4000, 1) == pytest.approx(16e-3)
    assert seconds(MACHINE, 4000, 2) == pytest.approx(2 * 4e-3 + 1e-3)
    assert seconds(MACHINE, 400, 4) == pytest.approx(3 * (0.1e-3 + 1e-3) + 0.01e-3)  # 100 positions take 0.1 ms to send
    assert seconds(MACHINE, 4000, 2, pairs=0.5) == pytest.approx(2 * 2e-3 + 1e-3)
    assert share_of_ideal(MACHINE, 4000, 2) == pytest.approx(8 / 9)


@pytest.mark.full
@pytest.mark.skipif(MPIEXEC is None, reason="mpiexec is not installed")
def test_it_measures_both_engines_and_writes_a_page(tmp_path):
    pytest.importorskip("mpi4py")
    stem = tmp_path / "ranks"
    said = finished(
        [sys.executable, "-m", "ranks", "--length", "256", "--rounds", "1", "--report", str(stem)],
        path=[BENCHES, *PATHS],
        PYTHONSAFEPATH="1",
    )
    measured = json.loads(stem.with_suffix(".json").read_text())
    assert {name: [len(engine[size]) for size in ("1", "2", "4")] for name, engine in measured["engines"].items()} == {
        "mpi": [1, 2, 4],
        "torch.distributed": [1, 2, 4],
    }
    for engine in measured["engines"].values():
        for size in (2, 4):
            part = 256 // size * 4096
            assert [rank["no mask"]["sent"] for rank in engine[str(size)]] == [(size - 1) * part] * size
            assert sum(rank["causal, contiguous"]["sent"] for rank in engine[str(size)]) == size * (size - 1) / 2 * part
    page = stem.with_suffix(".md").read_text()
    assert page.startswith("# Many processes, measured\n\nMeasured on ") and "256 tokens in 8 heads of 64" in page
    assert "| mpi | no mask | 2 |" in page and "| torch.distributed | causal, zigzag | 4 |" in page
    assert said.count("ns for a pair of query and key") == 4
