from typing import Any

def plan(
    kind: str,
    batch: tuple[int, ...],
    heads: int,
    key_heads: int,
    queries: int,
    keys: int,
    width: int,
    value_width: int,
    scale: float,
    softcap: float,
    low: int | None,
    high: int | None,
    team: int,
    /,
) -> Any: ...
def is_worth_threads(plan: Any, /) -> bool: ...
def attend(
    plan: Any,
    threads: int,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    lse: Any,
    sink: Any,
    mask: Any,
    bias: Any,
    distance: Any,
    lengths: Any,
    sequences: Any,
    /,
) -> None: ...
def attend_vjp(
    plan: Any,
    threads: int,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    lse: Any,
    sink: Any,
    mask: Any,
    bias: Any,
    distance: Any,
    lengths: Any,
    sequences: Any,
    d_out: Any,
    d_lse: Any,
    d_query: Any,
    d_key: Any,
    d_value: Any,
    /,
) -> None: ...
def use_level(name: str | None, /) -> str: ...
def exponentials(x: Any, y: Any, /) -> None: ...
def lines(what: int, x: Any, a: Any, bias: Any, eps: float, y: Any, /) -> None: ...
