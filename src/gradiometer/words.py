"""Numbers in words, the same everywhere: three digits in a sentence, four in a table."""

from __future__ import annotations

import math

__all__ = ["counted", "fmt", "number"]


def fmt(value: float) -> str:
    """A number in a sentence: three significant digits."""
    return f"{value:.3g}"


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
