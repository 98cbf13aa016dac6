"""The figures of experts show the run's own numbers: gaps stay open, zeros and NaNs are marked,
what is missing is said."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import gradiometer as gm
from gradiometer.charts.experts import (
    BIN_EDGES,
    ROLES,
    SINGLY,
    bare_layers,
    divergence_words,
    routing_points,
    shares,
    verdict,
)
from gradiometer.doctor.experts.judge import read_experts
from gradiometer.doctor.experts.series import (
    DIVERGENCE,
    LAYER_WEIGHT,
    TIERS,
    WEIGHT,
    ExpertRun,
    norm_of,
    rms_of,
)
from gradiometer.plots.experts import (
    CLEAN,
    ROUTER_COLOURS,
    WARM,
    broken,
    draw_divergence,
    draw_dynamics,
    draw_expert_runs,
    draw_routers,
    lines_of,
    mean_load,
    step_edges,
)
from gradiometer.plots.files import left_out, write_expert_runs, write_experts
from gradiometer.plots.maps import chosen_steps, draw_histograms, draw_layers
from gradiometer.plots.style import render, styled


def load_runs() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "expertrun", Path(__file__).with_name("expertrun.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUNS = load_runs()
LATER, AWAY, NAN_AT, ZERO_AT = 60, range(100, 150), 200, 250


def read(folder: Path) -> ExpertRun:
    with gm.load(folder) as run:
        found = read_experts(run)
    assert found is not None
    return found


def spoiled(step: int, values: Mapping[str, float]) -> dict[str, float]:
    """Expert 1 appears at step 60, expert 2 is away for five measurements; a NaN and a zero."""
    gone = ({"1"} if step < LATER else set()) | ({"2"} if step in AWAY else set())
    kept = {
        n: v
        for n, v in values.items()
        if not any(f"expert/{e}/" in n or n.endswith(f"load/{e}") for e in gone)
    }
    kept |= {"grad/expert/1/bottom_norm": float("nan")} if step == NAN_AT else {}
    return kept | ({"grad/expert/2/bottom_norm": 0.0} if step == ZERO_AT else {})


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> ExpertRun:
    """Three experts, two layers; what differs is routing alone."""
    return read(RUNS.write_run(tmp_path_factory.mktemp("runs") / "merged"))


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> ExpertRun:
    steps = [*range(0, 300, 10), *range(340, 400, 10)]
    folder = tmp_path_factory.mktemp("runs") / "holes"
    return read(RUNS.write_run(folder, genuine=0.5, terms=False, steps=steps, change=spoiled))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> ExpertRun:
    folder = tmp_path_factory.mktemp("runs") / "many"
    return read(RUNS.write_run(folder, experts=32, layers=11, steps=range(0, 100, 10)))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ExpertRun:
    found = read_experts(RUNS.source_log(tmp_path_factory.mktemp("logs") / "dynamics.db"))
    assert found is not None
    return found


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[attr-defined]


def panel(figure: Figure, title: str) -> Axes:
    (found,) = [ax for ax in figure.axes if ax.get_title(loc="left").startswith(title)]
    return found


def line(ax: Axes, colour: str) -> Line2D:
    """The one curve of that colour; dots, edge marks and levels have labels or no steps."""
    (found,) = [
        each
        for each in ax.lines
        if to_hex(each.get_color()) == colour.lower()  # type: ignore[arg-type]
        and not str(each.get_label()).startswith(("_zero", "_NaN", "_Inf", "_alone"))
        and each.get_linestyle() != ":"
    ]
    return found


def points(of: Line2D) -> dict[float, float]:
    x, y = np.asarray(of.get_xdata(), dtype=float), np.asarray(of.get_ydata(), dtype=float)
    return {step: value for step, value in zip(x, y, strict=True) if np.isfinite(value)}


def marks(ax: Axes, kind: str) -> dict[str, list[float]]:
    """The steps of the marks at an edge, by colour."""
    return {
        to_hex(each.get_color()): list(map(float, each.get_xdata()))  # type: ignore[arg-type]
        for each in ax.lines
        if each.get_label() == f"_{kind}"
    }


def hatched(ax: Axes) -> list[tuple[float, float, float]]:
    """Left, width and row of the hatched cells."""
    patches = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    return [(patch.get_x(), patch.get_width(), patch.get_y() + 0.5) for patch in patches]


def recorded(found: ExpertRun, template: str, expert: str) -> dict[float, float]:
    field = found.field(template)
    values, there = field.row(expert)
    return {
        float(s): float(v)
        for s, v, has in zip(field.steps, values, there, strict=True)
        if has and v > 0
    }


def drawn(draw: Any, *arguments: Any) -> Figure:
    with styled():
        figure: Figure = draw(*arguments)
    return figure


def test_the_tier_chart_has_the_recorded_norms_in_blue_for_expert_0_and_warm_for_the_others(
    merged: ExpertRun,
) -> None:
    ax = panel(drawn(draw_dynamics, merged), "Gradient norm")
    assert ax.get_yscale() == "log"
    for shade, tier in enumerate(("top", "bottom", "middle")):
        for expert, palette in (("0", CLEAN), ("1", WARM[0]), ("2", WARM[1])):
            assert points(line(ax, palette[shade])) == recorded(merged, norm_of(tier), expert)


def test_light_medium_and_dark_are_three_steps_of_brightness() -> None:
    for palette in (CLEAN, *WARM):
        brightness = [
            sum(int(colour[place : place + 2], 16) for place in (1, 3, 5)) for colour in palette
        ]
        assert brightness[0] > brightness[1] + 80 > brightness[2] + 160
        red, blue = int(palette[1][1:3], 16), int(palette[1][5:7], 16)
        assert (blue > red) == (palette is CLEAN)


def test_the_sound_row_is_rms_over_the_routing_weight(merged: ExpertRun) -> None:
    ax = panel(drawn(draw_dynamics, merged), "RMS per routing weight")
    rms, weight = merged.field(rms_of("bottom", layered=True)), merged.field(LAYER_WEIGHT)
    rows = [(layer, "2") for layer in merged.layers]
    assert len(rows) == 2
    each = [rms.row(row)[0] / weight.row(row)[0] for row in rows]
    drawn_points = points(line(ax, WARM[1][1]))
    assert list(drawn_points) == merged.steps.tolist()
    assert list(drawn_points.values()) == pytest.approx(np.mean(each, axis=0).tolist())
    pooled = merged.field(rms_of("bottom")).over(merged.field(WEIGHT)).row("2")[0]
    assert not np.allclose(pooled, np.mean(each, axis=0)), "weights differ between the layers"
    routed = merged.per_weight("middle")
    assert routed.there.all()
    assert routed.values[1] == pytest.approx(routed.values[0], rel=0.05), (
        "routing divided out, the experts of a merge are one"
    )


def test_a_weight_of_zero_divides_nothing(tmp_path: Path) -> None:
    def idle(step: int, values: Mapping[str, float]) -> dict[str, float]:
        return {**values, "grad/expert/1/routing_weight": 0.0, "grad/expert/1/top_rms": 0.0}

    found = read(RUNS.write_run(tmp_path / "idle", steps=range(3), change=idle))
    routed = found.field(rms_of("top")).over(found.field(WEIGHT))
    assert not routed.there[1].any()
    assert np.isnan(routed.values[1]).all()
    assert routed.there[0].all()


def test_missing_steps_are_gaps_and_never_bridged(holes: ExpertRun) -> None:
    ax = panel(drawn(draw_dynamics, holes), "Gradient norm")
    later, away = line(ax, WARM[0][2]), line(ax, WARM[1][2])
    assert min(points(later)) == LATER
    x, y = (np.asarray(data, dtype=float) for data in (away.get_xdata(), away.get_ydata()))
    assert np.isnan(y[(x >= AWAY.start) & (x < AWAY.stop)]).all()
    assert np.isfinite(y[x == AWAY.stop]).all()
    for curve in (later, away):
        x, y = (np.asarray(data, dtype=float) for data in (curve.get_xdata(), curve.get_ydata()))
        assert np.isnan(y[(x > 290) & (x < 340)]).any(), (
            "between 290 and 340 nothing at all was measured"
        )


def test_steps_that_should_have_been_measured_are_gaps_too(tmp_path: Path) -> None:
    steps = [step for step in range(0, 100, 10) if step != 50]
    found = read(RUNS.write_run(tmp_path / "missed", steps=steps, missed=[50]))
    assert 50 in found.steps
    curve = line(panel(drawn(draw_dynamics, found), "Gradient norm"), CLEAN[0])
    x, y = (np.asarray(data, dtype=float) for data in (curve.get_xdata(), curve.get_ydata()))
    assert np.isnan(y[x == 50]).all()
    assert 50 in x


def test_a_changed_cadence_is_no_gap_and_a_pause_is_one() -> None:
    steady = np.array([0, 10, 20, 30, 80, 130, 180])
    assert len(broken(steady, np.ones(7))[0]) == 7
    paused = np.array([0, 10, 20, 120, 130])
    x, y = broken(paused, np.ones(5))
    assert x.tolist() == [0, 10, 20, 70, 120, 130]
    assert np.isnan(y).tolist() == [False, False, False, True, False, False]


def test_zeros_stand_at_the_bottom_edge_and_nans_at_the_top(holes: ExpertRun) -> None:
    figure = drawn(draw_dynamics, holes)
    ax = panel(figure, "Gradient norm")
    assert marks(ax, "zero") == {WARM[1][1].lower(): [float(ZERO_AT)]}
    assert marks(ax, "NaN") == {WARM[0][1].lower(): [float(NAN_AT)]}
    (zero,) = [each for each in ax.lines if each.get_label() == "_zero"]
    (nan,) = [each for each in ax.lines if each.get_label() == "_NaN"]
    assert (
        float(np.asarray(zero.get_ydata())[0]) < 0.05 < 0.95 < float(np.asarray(nan.get_ydata())[0])
    )
    assert ZERO_AT not in points(line(ax, WARM[1][1]))
    assert NAN_AT not in points(line(ax, WARM[0][1]))
    assert "▾ at the bottom edge: exactly zero, × at the top edge: NaN." in words(figure)


def test_a_point_without_neighbours_is_a_dot(tmp_path: Path) -> None:
    found = read(RUNS.write_run(tmp_path / "one", steps=[7]))
    ax = panel(drawn(draw_dynamics, found), "Gradient norm")
    dots = [each for each in ax.lines if each.get_label() == "_alone"]
    assert len(dots) == 9
    assert all(list(map(float, each.get_xdata())) == [7.0] for each in dots)  # type: ignore[arg-type]


@pytest.mark.slow
def test_many_experts_are_a_median_with_a_band_and_the_ends_have_names(many: ExpertRun) -> None:
    figure = drawn(draw_dynamics, many)
    ax = panel(figure, "Gradient norm")
    others = np.array([many.field(norm_of("middle")).row(str(e))[0] for e in range(1, 32)])
    assert list(points(line(ax, WARM[0][2])).values()) == pytest.approx(np.median(others, axis=0))
    heights = [
        path.get_paths()[0].vertices[:, 1]
        for path in ax.collections
        if to_hex(path.get_facecolor()[0]) == "#67000d"
    ]
    assert len(heights) == 1
    assert (min(heights[0]), max(heights[0])) == pytest.approx((others.min(), others.max()))
    assert len(figure.legends[0].get_texts()) == 6
    said = words(figure)
    assert "experts 1–31 (median, band: min to max), top 5 %" in said
    assert "expert 31 is the lowest" in said
    assert "expert 1 the highest" in said


@pytest.mark.parametrize(
    ("experts", "lines"), [(2, 2), (3, 3), (SINGLY + 1, SINGLY + 1), (SINGLY + 2, 2), (8, 2)]
)
def test_the_legend_stays_short_however_many_experts_there_are(
    tmp_path: Path, experts: int, lines: int
) -> None:
    found = read(
        RUNS.write_run(tmp_path / "some", experts=experts, layers=1, steps=range(0, 30, 10))
    )
    assert len(lines_of(found.field(norm_of("top")), norm_of("top"))) == lines
    (legend,) = drawn(draw_dynamics, found).legends
    assert len(legend.get_texts()) == 3 * lines


def test_the_header_holds_the_divergence_at_the_end(
    merged: ExpertRun, many: ExpertRun, source: ExpertRun
) -> None:
    scores = merged.field(DIVERGENCE)
    first = float(np.median(scores.row("1")[0][-10:]))
    assert f"expert 1: {first:.2g}" in divergence_words(merged)
    assert "Prismatic: > 0.05 meaningful, < 0.01 converged" in divergence_words(merged)
    assert divergence_words(merged) in words(drawn(draw_dynamics, merged)).replace("\n", " ")
    assert "over 31 experts, from" in divergence_words(many)
    bare = ExpertRun(source.log, {})
    assert divergence_words(bare) == "divergence: not measured"


def test_divergence_has_the_sources_readings_as_lines(merged: ExpertRun) -> None:
    ax = panel(drawn(draw_divergence, merged), "Divergence")
    assert points(line(ax, WARM[0][1])) == recorded(merged, DIVERGENCE, "1")
    levels = {
        float(np.asarray(each.get_ydata())[0])
        for each in ax.lines
        if len(np.asarray(each.get_xdata())) == 2
    }
    assert levels == {0.05, 0.01}
    low, high = ax.get_ylim()
    assert low < 0.01 < 0.05 < high


def test_routing_alone_lies_on_the_diagonal_and_is_said(merged: ExpertRun) -> None:
    found, absent = routing_points(merged)
    assert len(found) == 4, "two experts in each of two layers"
    assert absent == 0
    assert all(norm == pytest.approx(weight, rel=0.02) for _, weight, norm in found)
    assert verdict(merged, merged.answers).startswith("Routing explains the divergence")
    figure = drawn(draw_divergence, merged)
    said = {text for ax in figure.axes for text in (t.get_text() for t in ax.texts)}
    assert "on the line: routing alone" in said
    assert "Routing explains the divergence" in words(figure)


def test_a_planted_difference_lies_off_the_diagonal_and_is_not_put_down_to_routing(
    holes: ExpertRun,
) -> None:
    found, _ = routing_points(holes)
    assert all(norm > 1.4 * weight for _, weight, norm in found)
    assert "not explain the divergence" in verdict(holes, holes.answers)
    ratio = panel(drawn(draw_divergence, holes), "|log ratio|")
    assert points(line(ratio, WARM[0][1])) == recorded(
        holes, "grad/expert/<expert>/log_ratio_routed", "1"
    )


def test_an_expert_without_a_weight_is_counted_and_not_drawn(tmp_path: Path) -> None:
    def starved(step: int, values: Mapping[str, float]) -> dict[str, float]:
        return {
            name: 0.0 if "expert/2/" in name and name.endswith("routing_weight") else v
            for name, v in values.items()
        }

    found = read(RUNS.write_run(tmp_path / "starved", steps=range(0, 30, 10), change=starved))
    there, absent = routing_points(found)
    assert {expert for expert, _, _ in there} == {"1"}
    assert absent == 2
    assert "2 not shown: zero or missing" in words(drawn(draw_divergence, found))


def test_the_heat_map_shows_the_median_of_the_last_ten_and_hatches_what_is_missing(
    holes: ExpertRun,
) -> None:
    figure = drawn(draw_layers, holes)
    ax = panel(figure, "Middle 90 %")
    field = holes.field(rms_of("middle", layered=True))
    (image,) = ax.images
    assert isinstance(image.norm, LogNorm)
    expected = [
        [float(np.median(field.row((layer, expert))[0][-10:])) for expert in holes.experts]
        for layer in holes.layers
    ]
    assert np.asarray(image.get_array()) == pytest.approx(np.array(expected))
    assert hatched(ax) == []
    at = drawn(draw_layers, holes, 120)
    assert "step 120" in words(at)
    for title in ("Top 5 %", "Middle 90 %", "Bottom 5 %"):
        assert hatched(panel(at, title)) == [
            (1.5, 1, 0),
            (1.5, 1, 1),
        ], "expert 2 is away at step 120, in both layers"
    assert "not measured" in words(at)


def test_zeros_and_nans_have_cells_of_their_own(tmp_path: Path) -> None:
    def odd(step: int, values: Mapping[str, float]) -> dict[str, float]:
        layer = "grad/layer.model.layers.0.moe/expert"
        return {**values, f"{layer}/1/top_rms": 0.0, f"{layer}/2/top_rms": float("nan")}

    found = read(RUNS.write_run(tmp_path / "odd", steps=[0], change=odd))
    figure = drawn(draw_layers, found, 0)
    ax = panel(figure, "Top 5 %")
    cells = {
        patch.get_x() + 0.5: to_hex(patch.get_facecolor())
        for patch in ax.patches
        if not patch.get_hatch()
    }  # type: ignore[attr-defined]
    assert cells == {1.0: "#ffffff", 2.0: "#d55e00"}
    assert "exactly zero" in words(figure)
    assert "NaN or Inf" in words(figure)


def test_a_large_heat_map_labels_some_of_its_rows_and_columns(many: ExpertRun) -> None:
    figure = drawn(draw_layers, many)
    ax = panel(figure, "Top 5 %")
    assert np.asarray(ax.images[0].get_array()).shape == (11, 32)
    assert [label.get_text() for label in ax.get_xticklabels()] == [str(e) for e in range(0, 32, 4)]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(map(str, range(11))), (
        "9 before 10"
    )
    assert ax.get_ylabel() == "layer  model.layers.*.moe"


def test_layers_are_named_by_where_they_differ() -> None:
    assert bare_layers(["layer.a.0.moe", "layer.a.1.moe"]) == (["0", "1"], "a.*.moe")
    assert bare_layers(["layer.moe"]) == (["moe"], "")
    assert bare_layers(["layer.x", "layer.y.z"]) == (["x", "y.z"], "")
    assert bare_layers(["layer.b.0", "layer.b.0.0"]) == (
        ["0", "0.0"],
        "b.*",
    ), "no layer without a name"


def test_loads_are_colours_around_the_fair_share_and_gaps_are_hatched(holes: ExpertRun) -> None:
    steps, values, there = mean_load(holes)
    figure = drawn(draw_routers, holes)
    ax = panel(figure, "Load")
    (mesh,) = ax.collections
    shown = np.ma.getdata(mesh.get_array()).reshape(3, -1)
    assert shown.shape[1] == len(steps) + 1, "a column for the steps 300 to 330"
    assert shown[0, 0] == pytest.approx(3 * values[0, 0])
    places = hatched(ax)
    assert (-5.0, 60.0, 1.0) in places, "expert 1 before it appears"
    assert (95.0, 50.0, 2.0) in places
    assert {row for left, width, row in places if (left, width) == (295.0, 40.0)} == {0.0, 1.0, 2.0}
    assert not there[1, 0]


def test_columns_of_steps_meet_halfway() -> None:
    assert step_edges(np.array([0, 10, 40])).tolist() == [-5, 5, 25, 55]
    assert step_edges(np.array([3])).tolist() == [2.5, 3.5]


def test_an_expert_that_got_nothing_is_black(tmp_path: Path) -> None:
    def dead(step: int, values: Mapping[str, float]) -> dict[str, float]:
        return {**values, "router/all/load/2": 0.0, "router/all/load/1": 1e-5}

    figure = drawn(
        draw_routers, read(RUNS.write_run(tmp_path / "dead", steps=range(0, 30, 10), change=dead))
    )
    (mesh,) = panel(figure, "Load").collections
    colours = mesh.to_rgba(mesh.get_array()).reshape(3, 3, 4)
    assert to_hex(colours[2, 0]) == "#262626"
    assert to_hex(colours[1, 0]) != "#262626", "little is not nothing"


def test_the_routers_gradient_is_split_where_terms_were_measured(
    merged: ExpertRun, holes: ExpertRun
) -> None:
    ax = panel(drawn(draw_routers, merged), "Router's gradient by term")
    assert ax.get_yscale() == "log"
    for template in ("router/<router>/grad_task", "router/<router>/grad_aux"):
        field = merged.field(template)
        expected = dict(zip(field.steps.astype(float), field.row("all")[0], strict=True))
        assert points(line(ax, ROUTER_COLOURS[ROLES[template]])) == pytest.approx(expected)
    assert len(ax.collections) == 3, "a band over the routers behind each line"
    bare = drawn(draw_routers, holes)
    assert "only with meter.terms" in words(bare)
    balance = panel(bare, "Balance and dead share")
    colour = ROUTER_COLOURS[ROLES["router/<router>/balance"]]
    assert points(line(balance, colour))[0.0] == pytest.approx(
        holes.field("router/<router>/balance").row("all")[0][0]
    )


def test_histograms_stand_side_by_side_at_the_first_middle_and_last_step(merged: ExpertRun) -> None:
    assert merged.histogram_steps == (0, 50, 100, 150, 200, 250, 300, 350)
    assert chosen_steps(merged.histogram_steps) == (0, 150, 350)
    figure = drawn(draw_histograms, merged)
    for expert, palette in (("0", CLEAN), ("2", WARM[0])):
        ax = panel(figure, f"expert {expert}")
        outlines = {to_hex(patch.get_edgecolor()): patch.get_data() for patch in ax.patches}  # type: ignore[attr-defined]
        for step, colour in zip((0, 150, 350), palette, strict=True):
            counts = RUNS.histogram(3, step, int(expert))
            assert outlines[colour.lower()].values == pytest.approx(counts[1:35] / counts.sum())
            assert outlines[colour.lower()].edges == pytest.approx(BIN_EDGES)
    (said,) = [text.get_text() for text in panel(figure, "expert 2").texts]
    assert said == "zeros: 1.57, 1.57, 1.57 %"


def test_bins_are_where_the_meter_puts_its_counts() -> None:
    from gradiometer.maths.histogram import EDGES, LABELS

    assert len(LABELS) == len(BIN_EDGES) - 1 + 3
    assert np.log10(EDGES) == pytest.approx(BIN_EDGES[1:-1], abs=0.002)
    one = np.zeros(37, dtype=np.int64)
    one[1 + 20] = 4
    (place,) = np.flatnonzero(shares(one))
    assert LABELS[1 + place] == f"[{EDGES[19]:.1e}, {EDGES[20]:.1e})"
    assert BIN_EDGES[place] == pytest.approx(np.log10(EDGES[19]), abs=0.002)


def test_histograms_of_many_experts_are_rows_of_a_map(many: ExpertRun) -> None:
    figure = drawn(draw_histograms, many, 50)
    (mesh,) = panel(figure, "step 50").collections
    table = np.ma.getdata(mesh.get_array()).reshape(32, 34)
    counts = RUNS.histogram(32, 50, 7)
    assert table[7] == pytest.approx(counts[1:35] / counts.sum())
    assert "exact zeros in 31 experts" in words(figure)


@pytest.mark.slow
def test_a_log_of_the_sources_columns_gets_the_figures_it_has_numbers_for(
    source: ExpertRun, tmp_path: Path
) -> None:
    files = [file.name for file in write_experts(source, tmp_path)]
    assert files == [
        "expert_dynamics.png",
        "expert_divergence.png",
        "expert_series.csv",
        "expert_summary.json",
    ]
    assert set(left_out(source)) == {"expert_layers", "expert_routers", "expert_histograms"}
    assert json.loads((tmp_path / "expert_summary.json").read_text())["left_out"] == left_out(
        source
    )
    figure = drawn(draw_dynamics, source)
    assert points(line(panel(figure, "Gradient norm"), CLEAN[1])) == recorded(
        source, norm_of("bottom"), "0"
    )
    assert "top_rms, bottom_rms, middle_rms and routing_weight are not in this run" in words(figure)
    figure = drawn(draw_divergence, source)
    assert len(hatched(panel(figure, "|log ratio|"))) == 1
    assert "log_ratio_routed was not measured" in words(figure)


def test_rms_without_weights_is_drawn_bare_and_said(tmp_path: Path) -> None:
    def unread(step: int, values: Mapping[str, float]) -> dict[str, float]:
        return {
            name: v
            for name, v in values.items()
            if not name.endswith(("routing_weight", "_routed"))
        }

    found = read(RUNS.write_run(tmp_path / "unread", steps=range(0, 30, 10), change=unread))
    ax = panel(drawn(draw_dynamics, found), "RMS of the gradient (not divided: no routing weights")
    assert points(line(ax, CLEAN[2])) == recorded(found, rms_of("middle"), "0")
    said = verdict(found, found.answers)
    assert said.startswith("Whether routing explains the divergence is undecided (|log ratio|")
    assert "log_ratio_routed was not measured" in said


def test_runs_side_by_side_share_their_axes(
    merged: ExpertRun, holes: ExpertRun, source: ExpertRun
) -> None:
    runs = [merged, holes, source]
    figure = drawn(draw_expert_runs, runs)
    rows = np.array(figure.axes).reshape(4, 3)
    for row in rows:
        assert len({ax.get_ylim() for ax in row}) == 1
    assert len({ax.get_xlim() for ax in rows.ravel()}) == 1
    assert [ax.get_title(loc="left") for ax in rows[0]] == ["merged", "holes", "dynamics"]
    for ax, found in zip(rows[0], runs, strict=True):
        assert points(line(ax, CLEAN[2])) == recorded(found, norm_of("middle"), "0")
    for ax, found in zip(rows[2], runs, strict=True):
        assert points(line(ax, WARM[0][1])) == recorded(found, DIVERGENCE, "1")
    assert len(hatched(rows[1, 2])) == len(hatched(rows[3, 2])) == 1, (
        "the source's columns hold no routing weights"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("sketched")
def test_the_numbers_behind_the_figures_are_beside_them(holes: ExpertRun, tmp_path: Path) -> None:
    files = {file.name: file for file in write_experts(holes, tmp_path)}
    rows = {
        int(row["step"]): row
        for row in csv.DictReader(io.StringIO(files["expert_series.csv"].read_text()))
    }
    assert sorted(rows) == holes.steps.tolist()
    name = "grad/expert/2/bottom_norm"
    assert rows[AWAY.start][name] == "", "missing"
    assert float(rows[ZERO_AT][name]) == 0.0
    assert rows[NAN_AT]["grad/expert/1/bottom_norm"] == "NaN"
    assert (
        float(rows[0]["router/all/balance"])
        == holes.field("router/<router>/balance").row("all")[0][0]
    )
    cells = list(csv.DictReader(io.StringIO(files["expert_layers.csv"].read_text())))
    assert len(cells) == len(TIERS) * 2 * 3
    bins = list(csv.DictReader(io.StringIO(files["expert_histograms.csv"].read_text())))
    assert (
        sum(int(row["count"]) for row in bins if (row["step"], row["expert"]) == ("0", "2")) == 5080
    )
    summary = json.loads(files["expert_summary.json"].read_text())
    assert summary["experts"] == ["0", "1", "2"]
    assert summary["at_the_end"]["grad/expert/1/divergence"] == pytest.approx(
        float(np.median(holes.field(DIVERGENCE).row("1")[0][-10:]))
    )


@pytest.mark.slow
@pytest.mark.usefixtures("sketched")
def test_named_steps_give_their_heat_maps_and_histograms_and_no_others(
    holes: ExpertRun, tmp_path: Path
) -> None:
    files = [file.name for file in write_experts(holes, tmp_path, kind="svg", steps=[120, 150])]
    assert files == [
        "expert_layers_step_120.svg",
        "expert_layers_step_120.csv",
        "expert_layers_step_150.svg",
        "expert_layers_step_150.csv",
        "expert_histograms_step_150.svg",
        "expert_histograms_step_150.csv",
    ]
    (why,) = left_out(holes, steps=[120, 150]).values()
    assert why == "no histograms of step 120; nearest that are kept: 100, 150, 50"
    rows = csv.DictReader(io.StringIO((tmp_path / "expert_layers_step_120.csv").read_text()))
    assert {row["rms"] for row in rows if row["expert"] == "2"} == {""}


@pytest.mark.slow
def test_a_comparison_keeps_runs_of_one_name_apart(merged: ExpertRun, tmp_path: Path) -> None:
    figure, numbers = write_expert_runs([merged, merged], tmp_path)
    assert (figure.name, numbers.name) == ("expert_comparison.png", "expert_comparison.csv")
    assert {row["run"] for row in csv.DictReader(io.StringIO(numbers.read_text()))} == {
        "merged",
        "merged (2)",
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_run_gives_the_same_bytes(merged: ExpertRun, kind: str) -> None:
    def made() -> Iterable[bytes]:
        for draw in (draw_dynamics, draw_layers):
            with styled():
                yield render(draw(merged), kind)

    assert list(made()) == list(made())


def test_a_run_without_experts_has_nothing_to_draw(synthetic: ModuleType, tmp_path: Path) -> None:
    with gm.load(synthetic.write_run(tmp_path / "plain", (1,))) as run:
        assert read_experts(run) is None


def test_reading_experts_needs_neither_torch_nor_matplotlib() -> None:
    code = "import sys, gradiometer.plots.files; print({'torch', 'matplotlib'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "set()\n"
    )
