"""Routers at a glance: is the load balanced, is an expert dead, and does the task train the router at all?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.experts.answers import SeriesSource
from gradiometer.doctor.experts.readings import listed
from gradiometer.doctor.experts.series import ExpertSeries
from gradiometer.maths.means import mean_interval
from gradiometer.metrics import key, parse
from gradiometer.words import fmt

__all__ = ["RouterHealth", "look_at_routers"]

BALANCED = 0.8
"""exp(entropy of the load)/N below which the load is uneven; the catalogue's healthy range."""

UNTRAINED = 1e-6
"""Router gradient over that of the experts. A healthy router is within a few decades of them; that of minimind issue 858
had 7e-10 where 1e-2 is healthy."""

ALMOST_NOTHING = 1e-8
"""The same where no expert's norm is at hand to compare with."""

LOAD = "router/<router>/load/<expert>"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterHealth:
    """The lines to print, and what of it asks for advice."""

    lines: tuple[str, ...]
    uneven: bool = False
    dead: tuple[str, ...] = ()
    untrained: bool = False
    aux_leads: bool = False


def look_at_routers(run: SeriesSource, series: ExpertSeries, since: int | None) -> RouterHealth:
    """Newest half of what was measured: how a router is now, not how it began."""
    names = set(run.names())
    recent = _Recent(run, names, since)
    balance, uneven = _balance_line(recent)
    deadness, dead = _dead_line(recent, series)
    gradient, untrained, aux_leads = _gradient_line(recent, series)
    return RouterHealth(
        lines=(balance, deadness, gradient), uneven=uneven, dead=dead, untrained=untrained, aux_leads=aux_leads
    )


class _Recent:
    """Router series by quantity: those of `all` where there are any, else of each router."""

    def __init__(self, run: SeriesSource, names: set[str], since: int | None) -> None:
        self._run, self._names, self._since = run, names, since

    def values(self, quantity: str) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        """Router → the newest half of a quantity, finite values only."""
        template = f"router/<router>/{quantity}"
        return {
            parts["router"]: found
            for name in sorted(self._names)
            if (parts := parse(template, name)) and (found := self._newest(name)).size
        }

    def loads(self) -> dict[str, float]:
        """Expert → its mean load: over all routers where that was kept, else the mean of theirs."""
        found: dict[str, dict[str, float]] = {}
        for name in sorted(self._names):
            if (parts := parse(LOAD, name)) and (values := self._newest(name)).size:
                found.setdefault(parts["expert"], {})[parts["router"]] = float(values.mean())
        return {e: routers.get("all", float(np.mean(list(routers.values())))) for e, routers in found.items()}

    def _newest(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        steps, values = self._run.series(name)
        values = values if self._since is None else values[steps >= self._since]
        values = np.asarray(values[values.size // 2 :], dtype=np.float64)
        return values[np.isfinite(values)]


def _level(values: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]], *, worst: str) -> tuple[str, float] | None:
    """Which router, and its median: `all` where kept, else the lowest or highest of them. One spike is no level."""
    if "all" in values:
        return "all", float(np.median(values["all"]))
    levels = {router: float(np.median(found)) for router, found in values.items()}
    if not levels:
        return None
    router = min(levels, key=lambda r: levels[r]) if worst == "low" else max(levels, key=lambda r: levels[r])
    return router, levels[router]


def _balance_line(recent: _Recent) -> tuple[str, bool]:
    values = recent.values("balance")
    found = _level(values, worst="low")
    loads = recent.loads()
    if found is None:
        return f"load: not measured ({key('router/<router>/balance', router='all')})", False
    router, _ = found
    level = float(values[router].mean())
    interval = mean_interval(values[router])
    within = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
    text = f"load: balance {level:.2f}{within} of 1"
    if loads:
        busy, idle = max(loads, key=lambda e: loads[e]), min(loads, key=lambda e: loads[e])
        spread = f"expert {busy} has {loads[busy]:.0%}, expert {idle} {loads[idle]:.0%}"
        text += f"; {spread}" if loads[busy] - loads[idle] > 0.005 else f"; every expert has {loads[busy]:.0%}"
    uneven = level < BALANCED
    return text + (": uneven" if uneven else ": even"), uneven


def _dead_line(recent: _Recent, series: ExpertSeries) -> tuple[str, tuple[str, ...]]:
    loads = recent.loads()
    silent = {e for e in series.experts if _silent(series, e)}
    dead = tuple(e for e in series.experts if e in silent or loads.get(e) == 0.0)
    share = _level(recent.values("dead_share"), worst="high")
    if not loads and share is None and not dead:
        return "dead experts: none by their gradients; loads were not measured", ()
    within = "" if share is None else f" (at a typical step {share[1]:.0%} get nothing)"
    return f"dead experts: {listed(dead) if dead else 'none'}{within}", dead


def _silent(series: ExpertSeries, expert: str) -> bool:
    """Whether an expert has no gradient, or only zeros, in the newest half of the measured steps."""
    points = series.pooled("norm", expert) if series.has("norm", expert) else series.pooled("middle_norm", expert)
    newest = points.steps >= series.steps[series.steps.size // 2]
    return not points.values[newest].any()


def _gradient_line(recent: _Recent, series: ExpertSeries) -> tuple[str, bool, bool]:
    task, aux, whole = (
        _level(recent.values(quantity), worst=worst)
        for quantity, worst in (("grad_task", "low"), ("grad_aux", "high"), ("grad", "low"))
    )
    main = task or whole
    if main is None:
        return f"router gradient: not measured ({key('router/<router>/grad_task', router='all')})", False, False
    norms = series.pooled("norm", "0").values
    floor = UNTRAINED * float(np.median(norms)) if norms.size else ALMOST_NOTHING
    untrained = main[1] < floor
    aux_leads = task is not None and aux is not None and aux[1] > task[1]
    source = "task" if task else "task and auxiliary together"
    text = f"router gradient: {fmt(main[1])} loss/weight from {source}"
    text += f", {fmt(aux[1])} from the auxiliary loss" if task and aux else ""
    if untrained:
        text += ": the router is not trained by the task, however even its load (minimind issue 858)"
    elif aux_leads:
        text += ": the auxiliary loss leads the router"
    elif task is None:
        text += "; meter.terms would tell them apart"
    return text, untrained, aux_leads
