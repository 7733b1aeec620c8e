"""A plugin of api 1, frozen: no file of this distribution is ever edited again, and a test holds their SHA-256.

It stands for the plugins that strangers wrote when api 1 came out. While mha-core says ``API = 1`` it must load, be given no
call that it does not declare, and compute what it did on its first day; a change of core that breaks it breaks theirs. What a
later contract brings is tried by a new sample beside this one.
"""

from mha_core.plugin import Backend, Call, Kernel, hookimpl


def _namespace():
    from .arrays import namespace

    return namespace


def _attention_supports(call: Call) -> str | None:
    if str(call.dtype) == "float64":
        return "takes no float64"
    if call.shape("query")[-2] > 64:
        return "goes row by row, too slow for more than 64"
    return None


def _gelu_supports(call: Call) -> str | None:
    return None if call.option("approximate") == "none" else "computes the exact gelu only"


@hookimpl
def mha_backends():
    yield Backend(
        name="frozen_v1",
        api=1,
        types=("mha_frozen_v1.arrays:FrozenArray",),
        namespace=_namespace,
        devices=lambda: ["cpu"],
        versions=lambda: {"mha-frozen-v1": "1.0.0"},
        install="pip install mha-frozen-v1",
    )


@hookimpl
def mha_kernels():
    yield Kernel(
        backend="frozen_v1",
        op="attention",
        name="rows",
        api=1,
        load="mha_frozen_v1.kernels:attention",
        handles=frozenset({"lse", "causal"}),
        supports=_attention_supports,
    )
    yield Kernel(backend="frozen_v1", op="gelu", name="erf", api=1, load="mha_frozen_v1.kernels:gelu", supports=_gelu_supports)
    # for someone else's backend, last in line, and only for who asks for it by name
    yield Kernel(
        backend="numpy", op="silu", name="frozen_v1", api=1, load="mha_frozen_v1.kernels:silu", priority=-100, opt_in=True
    )
