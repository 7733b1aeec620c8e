"""A plugin of api 1 as of 2026-11-26, frozen: no file of this distribution is ever edited again; a test holds their SHA-256.

It stands for the plugins that strangers wrote once api 1 had gradients, updates of weights and engines: a backend that uses
most fields of its record, kernels for gradients, and an engine. While mha-core says ``API = 1`` it must load, be given no call
that it does not declare, and compute what it did on its first day; a change of core that breaks it breaks theirs.
"""

from importlib import import_module

from mha_core.plugin import Backend, Collectives, Kernel, hookimpl

HERE = "mha_frozen_v1_gradients"
SEEN = frozenset({"causal", "window", "key_lengths"})
"""The masks that the kernels of attention read."""


def later(where):
    """The function ``"module:function"`` of this package, whose module is imported when it is first called."""
    module, _, function = where.partition(":")
    return lambda *arguments: getattr(import_module(f"{HERE}.{module}"), function)(*arguments)


@hookimpl
def mha_backends():
    yield Backend(
        name="frozen_v1_gradients",
        api=1,
        types=(f"{HERE}.arrays:SubArray",),
        namespace=lambda: import_module(f"{HERE}.arrays"),
        devices=lambda: ["cpu"],
        from_numpy=later("arrays:from_numpy"),
        to_numpy=later("arrays:to_numpy"),
        is_floating=later("arrays:is_floating"),
        parallel=later("threads:parallel"),
        synchronize=lambda: None,  # a call returns when its result is there
        features=later("states:features"),
        versions=lambda: {"mha-frozen-v1-gradients": "1.0.0"},
        install="pip install mha-frozen-v1-gradients",
        elsewhere={"gelu": {"compiled": "pip install mha-frozen-v1-compiled"}},
        set_num_threads=later("threads:set_num_threads"),
        refuses=later("arrays:refuses"),
        shields={"coarse": later("states:precise")},
        version=later("arrays:version"),
        advice={"cast": f"{{x}}.astype({HERE}.arrays.{{dtype}})", "convert": f"{HERE}.arrays.asarray({{x}})"},
    )


def kernel(op, name, where, **fields):
    return Kernel(backend="frozen_v1_gradients", op=op, name=name, api=1, load=f"{HERE}.{where}:{op}", **fields)


@hookimpl
def mha_kernels():
    fields = {"supports": f"{HERE}.attention:supports", "prepare": f"{HERE}.attention:prepare", "priority": 10}
    yield kernel("attention", "scores", "attention", handles=SEEN | {"lse"}, **fields)
    yield kernel("attention_vjp", "scores", "attention", handles=SEEN | {"d_lse"}, supports=fields["supports"])
    yield kernel("linear_vjp", "products", "training", handles=frozenset({"traced"}))
    yield kernel("feed_forward_vjp", "whole", "training", supports=f"{HERE}.training:supports")
    yield kernel("embedding_vjp", "add_at", "training", opt_in="adds one row after another")
    yield kernel("adamw", "in_place", "training")


@hookimpl
def mha_collectives():
    yield Collectives("queues", 1, (f"{HERE}.ranks:Queues",), f"{HERE}.ranks:Ranks", "pip install mha-frozen-v1-gradients")
