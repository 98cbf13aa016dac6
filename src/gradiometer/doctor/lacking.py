"""Why a rule cannot say: what it reads was not logged, or not often enough."""

from __future__ import annotations

from collections.abc import Iterable

from gradiometer.doctor.chart import Series
from gradiometer.doctor.rule import Skipped, how_to_log

__all__ = ["too_short", "unlogged"]


def unlogged(id: str, template: str) -> Skipped:
    """Its metric is not in the log."""
    return Skipped(rule=id, why=how_to_log(template), metric=template)


def too_short(id: str, found: Series | Iterable[Series], needed: int | str, *, metric: str | None = None) -> Skipped:
    """Too few measurements, even in the longest series. `needed` are points, or words; `metric` where none may be there."""
    listed = [found] if isinstance(found, Series) else list(found)
    name = listed[0].metric.name if metric is None else metric
    most = max((len(series.finite) for series in listed), default=0)
    told = f"{needed} needed" if isinstance(needed, int) else needed
    return Skipped(rule=id, why=f"{name}: {most} points, {told}", metric=name)
