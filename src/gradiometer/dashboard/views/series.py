"""Which series of a run are a quantity of the catalogue, also under the name another library gives it, and charts of them.

Values are drawn as the run has them. Where a library logs a quantity with the other sign, the label says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from gradiometer.dashboard.desk import Desk, Open, info_of
from gradiometer.dashboard.shape import Axis, Chart, Level, Line
from gradiometer.metrics import CATALOGUE, parse, resolve

__all__ = ["FEW", "Curves", "axis_of", "best", "called", "chart", "named", "natural", "reward_of", "said"]

FEW = 4
"""So many runs are drawn in full; of more only the main curves, in fewer points."""
LEAST_POINTS = 120
REWARD_LIKE = re.compile(r"(?:^|[/_. ])(?:reward|return|score|rew)s?(?:$|[/_. ])", re.IGNORECASE)
NOT_REWARD = re.compile(r"std|var|min|max|loss|coef|scale|norm|advantage|_per_|/per_", re.IGNORECASE)


def named(run: Open, template: str) -> list[str]:
    """The run's series that are this entry of the catalogue: under our name first, then by the order of its aliases.

    Of a name with placeholders that is one for each block, term, ..., the block `all` first.
    """
    metric = CATALOGUE[template]
    if "<" in template:
        ours = sorted((name for name in run.names if _is(template, name)), key=natural)
        ours.sort(key=lambda name: "all" not in (parse(template, name) or {}).values())
    else:
        ours = [template] if template in run.names else []
    return [*ours, *(alias.name for alias in metric.aliases if alias.name in run.names)]


def best(run: Open, template: str) -> str | None:
    """The first of them; None when the run has none."""
    return next(iter(named(run, template)), None)


def reward_of(run: Open) -> str | None:
    """What the run is rewarded by: the catalogue's reward, else its validation, else what is called like one."""
    known = best(run, "reward") or best(run, "val/reward")
    if known is not None:
        return known
    like = [name for name in run.names if REWARD_LIKE.search(name) and not NOT_REWARD.search(name)]
    return min((name for name in like if resolve(name) is None), key=lambda name: (len(name), name), default=None)


def said(name: str) -> str:
    """A series in words: what the catalogue calls it and how the log spells that, with a minus where the sign is turned."""
    known = resolve(name)
    if known is None:
        return name
    metric, alias = known
    if "<" in metric.name or alias is None:
        return name
    return f"{'−' if alias.sign < 0 else ''}{metric.name} ({name})"


def called(desk: Desk, run: Open) -> str:
    """What to call a run: its name, or its id when another on the desk has the same name."""
    return run.id if sum(other.label == run.label for other in desk.runs) > 1 else run.label


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts `layer.10` after `layer.9`."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def _is(template: str, name: str) -> bool:
    if parse(template, name) is None:
        return False
    known = resolve(name)
    return known is not None and known[0].name == template


class Curves:
    """Lines of the runs on a desk. A series is read once, however many charts show it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._taken: dict[tuple[str, str, int | None], Line] = {}
        many = len(desk.runs)
        self.crowded = many > FEW
        self._most = max(LEAST_POINTS, FEW * desk.ask.most // many) if self.crowded else None

    def line(
        self, run: Open, name: str, what: str = "", *, role: str = "", key: str = "", most: int | None = None
    ) -> Line:
        """A series; `what` it is is said beside the run's name when there are several runs, and instead of it otherwise."""
        most = most or self._most
        label = self._label(run, what)
        taken = self._taken.get((run.id, name, most))
        if taken is None:
            taken = self.desk.line(run, name, label, role=role, key=key, most=most)
            self._taken[run.id, name, most] = taken
        return replace(taken, label=label, role=role, key=key)

    def row(self, run: Open, name: str, label: str, *, key: str = "", most: int | None = None) -> Line:
        """A row of a map, which is of one run: without that run's name."""
        return replace(self.line(run, name, most=most), label=label, key=key)

    def of(self, template: str, runs: Iterable[Open] | None = None) -> list[Line]:
        """One line a run of a quantity without placeholders, under whatever name the run has it."""
        chosen = ((run, best(run, template)) for run in (self.desk.runs if runs is None else runs))
        return [self.line(run, name, said(name)) for run, name in chosen if name is not None]

    def _label(self, run: Open, what: str) -> str:
        if len(self.desk.runs) == 1:
            return what or run.label
        whose = called(self.desk, run)
        known = resolve(what)
        return whose if not what or (known and known[1] is None) else f"{whose} · {what}"


def chart(
    id: str,
    title: str,
    lines: Sequence[Line],
    *,
    section: str = "",
    subtitle: str = "",
    levels: Sequence[Level] = (),
    low: float | None = None,
    high: float | None = None,
    wide: bool = False,
) -> list[Chart]:
    """A chart of curves with the catalogue's scale, unit and ⓘ; none when it has no line."""
    if not lines:
        return []
    names = list(dict.fromkeys(line.name for line in lines))
    return [
        Chart(
            id=id, kind="lines", title=title, section=section, subtitle=subtitle or _turned(names),
            y=axis_of(names[0], low=low, high=high), lines=lines, levels=levels, info=info_of(*names), wide=wide,
        )
    ]  # fmt: skip


def axis_of(name: str, *, low: float | None = None, high: float | None = None) -> Axis:
    """The axis of a series' values: its unit and its scale."""
    known = resolve(name)
    if known is None:
        return Axis(low=low, high=high)
    metric, alias = known
    signed = alias is not None and alias.estimator == "k1"  # log p/q of samples, often below zero
    scale: Literal["linear", "log"] = "linear" if signed else metric.scale
    return Axis(title="" if metric.unit == "1" else metric.unit, scale=scale, low=low, high=high)


def _turned(names: Iterable[str]) -> str:
    """Of series that a library logs with the other sign: that they are drawn as logged."""
    turned = [name for name in names if (known := resolve(name)) and known[1] is not None and known[1].sign < 0]
    return f"{', '.join(turned)} is logged with the other sign, and drawn as logged" if turned else ""
