"""What kernels of other distributions a process leaves out."""

import pytest
from sample_kernels import Plugin, a_kernel, registered

import mha_core as mha
from mha_conformance.bench import plugins
from mha_conformance.bench.attention import Attention
from mha_core.dispatch.registry import registry
from mha_core.plugin import register

PROBLEM = Attention(1, 2, 8, 4)


@pytest.fixture
def two():
    """Two plugins with kernels for attention; a third has one for GELU."""
    with (
        registered(Plugin([a_kernel(), a_kernel(backend="torch")]), "mha_fast") as fast,
        registered(Plugin([a_kernel(name="other", priority=50)]), "other"),
        registered(Plugin([a_kernel("gelu")]), "smooth"),
    ):
        yield fast


def chosen():
    query, key, value = PROBLEM.arrays()
    return mha.explain("attention", query, key, value).kernel


def test_distributions_are_those_with_kernels_of_the_operation_but_not_the_backend_s_own(two):
    assert plugins.distributions("numpy", "attention") == ["mha-fast", "other"]
    assert plugins.distributions("torch", "attention") == ["mha-fast"]
    assert plugins.distributions("numpy", "gelu") == ["smooth"]


def test_work_without_a_distribution_runs_on_the_kernels_of_the_others(two):
    assert chosen() == "sample"
    work = plugins.without(PROBLEM, "numpy", "mha-fast")
    try:
        assert chosen() == "other" and work.answer().shape == (1, 2, 8, 4)
        assert plugins.distributions("numpy", "attention") == ["other"]
    finally:
        register(two, "mha_fast")


def test_no_distribution_and_one_that_is_not_installed_leave_out_nothing(two):
    before = list(registry().plugins)
    plugins.without(PROBLEM, "numpy", "")
    plugins.leave_out("mha-absent")
    assert registry().plugins == before
