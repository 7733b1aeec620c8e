"""Many small checks in one test: all of them run, and the failure names every one that failed."""


def for_each(cases, check):
    """Call ``check`` with each value of ``cases``; raise AssertionError with the name and error of every case that raised."""
    failed = {}
    for name, case in cases.items():
        try:
            check(case)
        except Exception as error:
            failed[name] = error
    errors = "".join(f"\n{name}: {type(error).__name__}: {error}" for name, error in failed.items())
    if failed:
        raise AssertionError(f"{len(failed)} of {len(cases)} fail:{errors}") from next(iter(failed.values()))
    assert cases, "there is nothing to check"
