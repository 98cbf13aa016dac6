"""The routers in the tab Dynamics: who gets the tokens, how evenly, and whether the task trains the router at all."""

from __future__ import annotations

from collections.abc import Sequence

from gradiometer.dashboard.desk import info_of
from gradiometer.dashboard.shape import Axis, Chart, Level, Line
from gradiometer.dashboard.views.dynamics_charts import Drawing, fair_share
from gradiometer.dashboard.views.dynamics_runs import Experts
from gradiometer.plots.expertdata import BALANCE, DEAD, EVERY_ROUTER, GRAD_AUX, GRAD_TASK, LOAD, ROUTER_GRAD

__all__ = ["router_charts"]

ROWS_POINTS = 200
"""Points of a row of a map."""
ROLES = {GRAD_TASK: "term:task", GRAD_AUX: "term:aux", ROUTER_GRAD: "raw", BALANCE: "term:balance", DEAD: "term:dead"}


def router_charts(drawing: Drawing, found: Experts, router: str, health: Sequence[str], *, many: bool) -> list[Chart]:
    """Who gets the tokens, how evenly, and whether the task trains the router at all."""
    words = "all routers together" if router == EVERY_ROUTER else router
    charts = [
        _load(drawing, found, router, words, many=many),
        Chart(
            id="evenness", kind="lines", title=f"Balance and dead share, {words}",
            subtitle="; ".join(health[:2]) if router == EVERY_ROUTER else "", x=Axis(title="step"), y=Axis(low=0.0, high=1.05),
            lines=_of_router(drawing, found, router, {BALANCE: "balance", DEAD: "dead share"}),
            levels=[Level(value=1.0, label="1: every expert has its share")], info=info_of(BALANCE, DEAD),
        ),
        Chart(
            id="router-gradient", kind="lines", title=f"Gradient of the router, {words}",
            subtitle=_by_term(found, router), x=Axis(title="step"), y=Axis(title="norm", scale="log"),
            lines=_of_router(
                drawing, found, router,
                {GRAD_TASK: "from the task", GRAD_AUX: "from auxiliary losses", ROUTER_GRAD: "whole gradient"},
            ),
            info=info_of(GRAD_TASK, GRAD_AUX, ROUTER_GRAD),
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart.lines]


def _of_router(drawing: Drawing, found: Experts, router: str, wanted: dict[str, str]) -> list[Line]:
    return [
        drawing.desk.line(found.run, name, words, role=ROLES[template], most=drawing.most)
        for template, words in wanted.items()
        if (name := found.name(template, router)) is not None
    ]


def _load(drawing: Drawing, found: Experts, router: str, words: str, *, many: bool) -> Chart:
    """Lines of the few; of many experts a row each, for it is the idle one among them that matters."""
    experts = found.experts if many else drawing.shown
    lines = [
        drawing.desk.line(
            found.run, name, f"expert {expert}", role=f"expert:{expert}:bottom", key=expert,
            most=ROWS_POINTS if many else drawing.most,
        )
        for expert in experts
        if (name := found.name(LOAD, (router, expert))) is not None
    ]  # fmt: skip
    return Chart(
        id="load", kind="map" if many else "lines", title=f"Load: share of the routed tokens, {words}",
        x=Axis(title="step"), y=Axis(title="expert" if many else "share", low=None if many else 0.0), lines=lines,
        levels=[] if many else fair_share(found), reduce="mean", info=info_of(LOAD),
    )  # fmt: skip


def _by_term(found: Experts, router: str) -> str:
    if found.name(GRAD_TASK, router) or found.name(GRAD_AUX, router):
        return ""
    return "What the task and what auxiliary losses contribute is known with meter.terms."
