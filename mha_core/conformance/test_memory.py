"""Promise 13: beyond its arguments attention takes memory that grows with L + S, measured in a process of its own.

L = S = 8192 with one head, whose scores alone would be 256 MB in float32: a process that grew by a quarter of that is not
dense, nor did it write out a mask or a bias. Blocks take 10 to 25 MB. What the allocator keeps of an earlier case can hide
no more than this quarter, and it is told to give large blocks back.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from . import fresh
from .peak import CASES, limit
from .subject import Subject

pytestmark = pytest.mark.promise(13)
QUICK = ("plain", "array_mask")


@pytest.fixture(scope="module")
def growth(subject: Subject) -> Mapping[str, int]:
    """By how many bytes a process grew in each case, in the first dtype that is judged."""
    if subject.on_host is None:
        pytest.skip("its arrays do not say, by __dlpack_device__, that they live in the memory of the host")
    if not subject.on_host:
        pytest.skip("its arrays live on a device, whose memory no portable call measures")
    try:
        import resource  # noqa: F401
    except ImportError:
        pytest.skip("this system does not tell how much memory a process takes at most")
    words = [subject.name, subject.dtypes[0], *([] if subject.device is None else [str(subject.device)])]
    words += [word for name in subject.plugins for word in ("--plugin", name)]
    words += [word for case in QUICK if subject.quick for word in ("--case", case)]
    # glibc keeps what was freed for later calls, unless it is told that blocks of this size go back: others do not listen
    found: dict[str, int] = fresh.run("-m", "mha_core.conformance.peak", *words, MALLOC_MMAP_THRESHOLD_="1048576")
    return found


@pytest.mark.parametrize("case", CASES)
def test_memory_grows_with_the_length_not_its_square(subject: Subject, growth: Mapping[str, int], case: str) -> None:
    if subject.quick and case not in QUICK:
        pytest.skip(f"quick runs measure {' and '.join(QUICK)} alone")
    assert growth[case] <= limit(), (
        f"the process grew by {growth[case] >> 20} MB, expected at most {limit() >> 20} MB: attention, or a kernel of it, "
        f"makes something as large as the scores"
    )
