"""The conformance suite on every kernel of mha_cupy, with its CUDA run on the host."""

from cuda_kernels import needs_compiler
from processes import printed
from suite import MHA

pytestmark = needs_compiler


def test_conformance_finds_nothing_wrong():
    """Covers every feature, declared and undeclared, layouts, poison, threads, and bounds on each element in four dtypes."""
    options = ["--quick", "--part", "0.3", "-k", "on_host", "--plugin", "cuda_on_host.installed"]
    report = printed(MHA, "conform", "numpy", *options)
    assert "attention lse" in report and "bfloat16" in report
