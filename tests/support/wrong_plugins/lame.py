"""A backend whose library is not installed."""

from mha_core.plugin import Backend, hookimpl


def _missing():
    import no_such_library

    return no_such_library


@hookimpl
def mha_backends():
    yield Backend("lame", 1, ("lame:Array",), _missing, install="pip install lame-library")
