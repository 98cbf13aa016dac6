"""The tab Gradients: every layer over time, then one of them or the whole model in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gradiometer.dashboard.desk import Desk, Open, info_of
from gradiometer.dashboard.shape import Axis, Chart, Control, Empty, Option, View
from gradiometer.dashboard.views.blockcurves import blocks_section, clipping, detail, direction, history, noise
from gradiometer.dashboard.views.blockhistograms import histogram
from gradiometer.dashboard.views.layers import (
    LAYER,
    Blocks,
    block_title,
    blocks_of,
    in_model_order,
    measured_at,
    watch_it,
)
from gradiometer.dashboard.views.series import FEW, Curves, called
from gradiometer.errors import UnknownName
from gradiometer.metrics import CATALOGUE

__all__ = ["gradients"]

MOST_COLUMNS = 300
MOST_ROWS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What the map can show of a layer."""

    end: str
    """Of the series' names."""
    label: str
    reduce: Literal["max", "min"] = "max"
    tier: str = "standard"
    high: float | None = None


QUANTITIES = {
    "norm": Quantity(end="norm/raw", label="gradient norm", tier="light"),
    "health": Quantity(end="health", label="health", reduce="min", high=1.0),
    "zero": Quantity(end="zero_fraction", label="zero share", high=1.0),
    "update": Quantity(end="update_ratio", label="update ratio"),
}
"""By the value of `quantity=`."""


def gradients(desk: Desk) -> View:
    """The map of the layers, the curves of the chosen one, then blocks, clipping, direction, noise and histograms."""
    curves = Curves(desk)
    blocks = blocks_of(desk.focus)
    layers = in_model_order(desk.focus, blocks.layers)
    rows = layers or list(blocks.named)
    quantity, chosen = _quantity(desk, rows), _chosen(desk, blocks)
    charts = [
        *_map(curves, rows, quantity),
        *detail(curves, chosen or "all"),
        *blocks_section(curves),
        *clipping(curves),
        *direction(curves),
        *noise(curves),
        *history(curves),
        *histogram(desk, chosen or "all"),
    ]
    something = any(chart.lines or chart.matrix for chart in charts)
    return View(
        view="gradients",
        title="Gradients",
        runs=[run.id for run in desk.runs],
        header=[f"Of {len(desk.runs)} runs the main curves; choose up to {FEW} to see all."] if curves.crowded else (),
        controls=_controls(desk.focus, blocks, layers, quantity, chosen) if something else (),
        charts=charts if something else (),
        empty=None if something else _nothing(desk),
    )


def _quantity(desk: Desk, rows: Sequence[str]) -> str:
    asked = desk.ask.option("quantity")
    if asked and asked not in QUANTITIES:
        raise UnknownName("quantity", asked, QUANTITIES, hint=f"(there are {', '.join(QUANTITIES)})")
    there = _there(desk.focus, rows)
    return asked or next(iter(there), "norm")


def _there(run: Open, rows: Sequence[str]) -> list[str]:
    """The quantities that any row has."""
    return [
        name
        for name, quantity in QUANTITIES.items()
        if any(f"grad/{block}/{quantity.end}" in run.names for block in rows)
    ]


def _chosen(desk: Desk, blocks: Blocks) -> str:
    """The layer or block in the URL; empty for the whole model."""
    asked = desk.ask.option("layer")
    if asked in ("", "all") or asked in blocks.main or asked in blocks.layers:
        return "" if asked == "all" else asked
    known = {block for run in desk.runs for each in [blocks_of(run)] for block in (*each.main, *each.layers)}
    if asked not in known:
        hint = f"({called(desk, desk.focus)} has {len(blocks.layers)} layers and {len(blocks.named)} named blocks)"
        raise UnknownName("layer", asked, known, hint=hint)
    return asked


def _map(curves: Curves, rows: Sequence[str], name: str) -> list[Chart]:
    """Layer × step of the run in focus."""
    run, quantity = curves.desk.focus, QUANTITIES[name]
    having = [block for block in rows if f"grad/{block}/{quantity.end}" in run.names]
    lines = [
        curves.row(run, f"grad/{block}/{quantity.end}", block_title(block), key=block, most=MOST_COLUMNS)
        for block in having[:MOST_ROWS]
    ]
    cut = f"the first {MOST_ROWS} of {len(having)} layers" if len(having) > MOST_ROWS else ""
    whose = called(curves.desk, run) if len(curves.desk.runs) > 1 else ""
    template = f"grad/<block>/{quantity.end}"
    return [
        Chart(
            id="layers", kind="map", title=f"Layers: {quantity.label}", section="Layers",
            subtitle=" · ".join(filter(None, (whose, cut))),
            y=Axis(title=quantity.label, scale=CATALOGUE[template].scale, low=quantity.high and 0.0, high=quantity.high),
            lines=lines, reduce=quantity.reduce, colours="health" if name == "health" else "sequential",
            info=info_of(template), wide=True, pick="layer",
            empty=None if lines else measured_at(run, f"{quantity.label} by layer", quantity.tier),
        )
    ]  # fmt: skip


def _controls(run: Open, blocks: Blocks, layers: Sequence[str], quantity: str, chosen: str) -> list[Control]:
    there = _there(run, layers or blocks.named)
    offered = [name for name in QUANTITIES if name in there or name == quantity]
    places = [block for block in (*blocks.named, *layers) if block != chosen]
    listed = [*blocks.named, *layers] if chosen in (*blocks.named, *layers, "") else [chosen, *places]
    return [
        Control(
            kind="choice", name="quantity", label="Map shows", value=quantity,
            options=[Option(value=name, label=QUANTITIES[name].label) for name in offered],
        ),
        Control(
            kind="choice", name="layer", label="Curves of", value=chosen, hint="or click a row of the map",
            options=[
                Option(value="", label=block_title("all")),
                *(Option(value=block, label=_option_label(block)) for block in listed),
            ],
        ),
    ]  # fmt: skip


def _option_label(block: str) -> str:
    return block_title(block) if block.startswith(LAYER) else f"block {block}"


def _nothing(desk: Desk) -> Empty:
    return Empty(
        title="No gradients",
        cause=f"{called(desk, desk.focus)} holds no gradient of any block, and no series known as a gradient norm.",
        fix="Put the meter around the training: norms, clips, direction and health of every layer come by themselves.",
        code=watch_it(run=desk.focus),
    )
