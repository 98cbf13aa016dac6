"""Numbers in words, the same everywhere: three digits in a sentence, four in a table; and how a
line is said beside a training."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["counted", "factor", "fmt", "natural", "number", "say", "some", "typeset"]


def fmt(value: float) -> str:
    """A number in a sentence: three significant digits."""
    return f"{value:.3g}"


def factor(value: float) -> str:
    """How many times: three significant digits, `2,000` and not `2e+03`."""
    return f"{float(fmt(value)):,.0f}" if 100 <= value < 1e6 else fmt(value)


def number(value: float | None) -> str:
    """A number in a table: four significant digits; NaN, Inf and missing stay what they are."""
    if value is None:
        return "-"
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.4g}"


def counted(count: int | None, word: str) -> str:
    """`1 rollout`, `8 rollouts`; nothing where there is no count."""
    return "" if count is None else f"{count} {word}{'' if count == 1 else 's'}"


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts `layer.10` after `layer.9`."""
    return tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    )


def some(names: Iterable[object], most: int = 10) -> str:
    """The first of the names, and how many more there are."""
    shown = [str(name) for name in names]
    more = len(shown) - most
    return ", ".join(shown[:most]) + (f" and {more} more" if more > 0 else "")


def say(message: str) -> None:
    """A line of ours, on stderr: stdout is the training's."""
    with suppress(OSError, ValueError, AttributeError):  # a script may have closed it
        print(f"gradiometer: {message}", file=sys.stderr, flush=True)


def typeset(number: float, digits: int = 2) -> str:
    """As a paper writes it: 0.031, 42, 1.3 × 10⁻⁵ (in the mathematics of matplotlib)."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    if 1e-4 <= abs(number) < 1e4:
        whole = abs(number) >= 10**digits
        return (f"{number:.0f}" if whole else f"{number:.{digits}g}").replace("-", "−")
    mantissa, power = f"{number:.{digits - 1}e}".split("e")
    shown = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"${shown}\\times10^{{{int(power)}}}$"
