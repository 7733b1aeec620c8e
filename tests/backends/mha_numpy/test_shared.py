"""The module that NumPy's kernels declare for other distributions."""

import pytest

import mha_core as mha
from mha_numpy import shared


def test_a_distribution_for_another_version_is_told_what_to_install():
    shared.check(shared.VERSION, "mha-native")
    with pytest.raises(
        mha.PluginApiMismatch, match=r"mha-native was written for version 0 .* install a mha-native of the same"
    ):
        shared.check(shared.VERSION - 1, "mha-native")
