"""Compute the polynomials of src/exponential.h: 1 + f q(f), close to 2^f for -1/2 <= f <= 1/2.

    python coefficients.py 6 24     # degree 6, for numbers with 24 significant bits

Each polynomial has the least greatest relative error of its degree, with the constant term 1, found by Remez's exchange.
Source: Remez 1934; Muller, Elementary Functions, chapter 3.
"""

import sys

from mpmath import lu_solve, matrix, mp, mpf

mp.dps = 60
EDGE = mpf(1) / 2


def error(coefficients: list[mpf], f: mpf) -> mpf:
    """Return the relative error at f."""
    return (1 + sum(c * f ** (at + 1) for at, c in enumerate(coefficients))) / mpf(2) ** f - 1


def remez(degree: int) -> tuple[list[mpf], mpf]:
    """Return the coefficients of f, f^2, ..., and the greatest error."""
    points = [EDGE * mp.cos(mp.pi * (at + mpf(1) / 2) / (degree + 1)) for at in range(degree + 1)]
    grid = [EDGE * (2 * mpf(at) / 4000 - 1) for at in range(4001)]
    for _ in range(12):
        rows = [[f ** (k + 1) / mpf(2) ** f for k in range(degree)] + [mpf(-1) ** at] for at, f in enumerate(points)]
        solution = lu_solve(matrix(rows), matrix([1 - mpf(2) ** -f for f in points]))
        coefficients = [solution[k] for k in range(degree)]
        errors = [error(coefficients, f) for f in grid]
        points = _extremes(grid, errors, degree + 1)
    return coefficients, max(map(abs, errors))


def _extremes(grid: list[mpf], errors: list[mpf], count: int) -> list[mpf]:
    """Return the point of greatest error between each two changes of sign."""
    best: list[tuple[mpf, mpf]] = []
    for f, e in zip(grid, errors, strict=True):
        if best and (e > 0) == (best[-1][1] > 0):
            if abs(e) > abs(best[-1][1]):
                best[-1] = (f, e)
        else:
            best.append((f, e))
    while len(best) > count:  # the ends of the interval may add one
        best.pop(0 if abs(best[0][1]) < abs(best[-1][1]) else -1)
    return [f for f, _ in best]


if __name__ == "__main__":
    degree, bits = map(int, sys.argv[1:])
    coefficients, worst = remez(degree)
    print("greatest error", mp.nstr(worst, 3), "=", mp.nstr(worst * 2**bits, 3), "units in the last place of 1")
    for at, c in enumerate(coefficients):
        print(f"f^{at + 1}", float(c).hex(), mp.nstr(c, 20))
