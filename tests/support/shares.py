"""The option ``--share N/12``: of the tests marked ``rotating``, run one share of twelve; every other test runs as always.

``--share auto`` takes the share that the commit's hash chooses, so that CI runs each of these tests once in twelve commits.
"""

import zlib

import pytest
from processes import run
from project import ROOT

COUNT = 12
SHARE = pytest.StashKey[tuple[int, str]]()


def pytest_addoption(parser):
    parser.addoption(
        "--share", metavar=f"N/{COUNT}", help="run one share of the rotating tests; auto: chosen by the commit's hash"
    )


def share_of(word):
    """Return the share, from 1 to COUNT, of a rotating test's name, or of the tests marked ``rotating(word)`` together."""
    return zlib.crc32(word.encode()) % COUNT + 1


def chosen_share(asked):
    """Return the number of a share, and why it was chosen."""
    if asked == "auto":
        git = run(["git", "rev-parse", "HEAD"], cwd=ROOT)
        if git.returncode:
            raise pytest.UsageError(f"--share auto needs a git checkout: {git.stderr.strip()}")
        commit = git.stdout.strip()
        return int(commit, 16) % COUNT + 1, f"chosen by commit {commit[:12]}"
    if asked not in (known := [f"{number}/{COUNT}" for number in range(1, COUNT + 1)]):
        raise pytest.UsageError(f"--share {asked}: expected auto or one of {', '.join(known)}")
    return int(asked.partition("/")[0]), "as asked"


def pytest_configure(config):
    if asked := config.getoption("share", None):
        config.stash[SHARE] = chosen_share(asked)


def pytest_report_header(config):
    if SHARE in config.stash:
        number, why = config.stash[SHARE]
        return f"rotating tests: share {number}/{COUNT}, {why}; make test-all runs them all"
    return None


@pytest.hookimpl(trylast=True)  # after the folders have given their markers
def pytest_collection_modifyitems(config, items):
    if SHARE not in config.stash:
        return
    number, _ = config.stash[SHARE]
    rotating = {item: mark for item in items if (mark := item.get_closest_marker("rotating"))}
    left_out = [item for item, mark in rotating.items() if share_of(*(mark.args or (item.nodeid,))) != number]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
