"""Many small checks in one test: each one runs, and the failure names all that do not hold."""


def for_each(cases, check):
    """Call ``check`` with each value of ``cases``; the failure tells the name and the error of every case that raises."""
    failed = {}
    for name, case in cases.items():
        try:
            check(case)
        except Exception as error:
            failed[name] = error
    told = "".join(f"\n{name}: {type(error).__name__}: {error}" for name, error in failed.items())
    if failed:
        raise AssertionError(f"{len(failed)} of {len(cases)} fail:{told}") from next(iter(failed.values()))
    assert cases, "there is nothing to check"
