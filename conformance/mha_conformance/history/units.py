"""Format values with three digits in a suitable unit."""

from __future__ import annotations

from collections.abc import Iterable

SCALES = {
    "seconds": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)),
    "us": (("µs", 1.0),),
    "instructions": (("M", 1e6), ("k", 1e3), ("", 1.0)),
    "cycles": (("M", 1e6), ("k", 1e3), ("", 1.0)),
    "bytes": (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)),
}


def scale(values: Iterable[float], unit: str) -> tuple[str, float]:
    """Return the largest unit in which all values are at least 1, or the smallest unit, with its size."""
    scales = SCALES.get(unit, ((unit, 1.0),))
    least = min(map(abs, values), default=1.0)
    return next((each for each in scales if least >= each[1]), scales[-1])


def digits(value: float) -> str:
    """Format a number with three digits, or all of those before the decimal point.

    >>> digits(0.17251), digits(26), digits(1234.5)
    ('0.173', '26.0', '1234')
    """
    return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:.0f}"


def shown(value: float, unit: str) -> str:
    """Format a value with its unit.

    >>> shown(0.02631, "seconds"), shown(2.5e8, "bytes"), shown(0, "bytes"), shown(0.1725, "x"), shown(1.5, "us")
    ('26.3 ms', '250 MB', '0 B', '0.172x', '1.50 µs')
    """
    name, size = scale([value], unit)
    if value == 0 and unit == "bytes":
        return "0 B"
    space = "" if name in {"", "x"} else " "
    return f"{digits(value / size)}{space}{name}"
