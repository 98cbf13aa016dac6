"""The tab Dynamics shows the run's own numbers: every line, cell and bar is compared with what is
on disk."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest

from gradiometer.charts.experts import layer_cells, verdict
from gradiometer.charts.model import Chart, Line
from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import parse_query
from gradiometer.dashboard.request import PointsLater, ViewRequest
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.shape import View
from gradiometer.doctor.experts.answers import SENTENCES
from gradiometer.doctor.experts.judge import judge, read_experts
from gradiometer.doctor.experts.series import TIERS, rms_of
from gradiometer.errors import UnknownName
from gradiometer.records import Event, Row
from gradiometer.store.exporters import export_dynamics
from gradiometer.store.reader import Run, load
from gradiometer.store.writer import Writer

NUMBERS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
SOUND = ("sound", "layer-sound")


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """Runs with experts, by file: tests are no package."""
    spec = importlib.util.spec_from_file_location(
        "expertrun", Path(__file__).parents[1] / "plots" / "expertrun.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def view_of(root: Path, query: str = "") -> View:
    index = RunIndex(root)
    return answer(
        index, Diagnoses(index), "dynamics", parse_query(parse_qsl(query, keep_blank_values=True))
    )


def chart_of(view: View, id: str) -> Chart:
    found = {chart.id: chart for chart in view.charts}
    assert id in found, list(found)
    return found[id]


def control_of(view: View, name: str) -> Any:
    (found,) = [control for control in view.controls if control.name == name]
    return found


def numbers(values: Iterable[Any]) -> np.ndarray:
    return np.array(
        [np.nan if value is None else NUMBERS.get(value, value) for value in values],
        dtype=np.float64,
    )


def same(line: Line, series: tuple[np.ndarray, np.ndarray]) -> None:
    assert list(line.points.steps) == series[0].tolist(), line.label
    np.testing.assert_array_equal(numbers(line.points.values), series[1], err_msg=line.label)


def row_of(name: str, view: View) -> Line:
    (found,) = [
        line
        for chart in view.charts
        for line in chart.lines
        if line.name == name and chart.id not in SOUND
    ]
    return found


def quotient(run: Run, tier: str, expert: str, layers: Sequence[str]) -> np.ndarray:
    """RMS / routing weight in each layer, and the mean of it."""
    each = [
        run.series(f"grad/{layer}/expert/{expert}/{tier}_rms")[1]
        / run.series(f"grad/{layer}/expert/{expert}/routing_weight")[1]
        for layer in layers
    ]
    return np.asarray(np.mean(each, axis=0))


LAYERS = ("layer.model.layers.0.moe", "layer.model.layers.1.moe")


# The chart of norms by tier


def test_the_chart_is_the_source_s_with_the_numbers_of_the_view_dynamics(
    tmp_path: Path, made: ModuleType
) -> None:
    folder = made.write_run(tmp_path / "moe")
    view = view_of(tmp_path)
    chart = chart_of(view, "tiers")
    assert (chart.kind, chart.y.scale, chart.y.title, chart.x.title) == (
        "lines",
        "log",
        "gradient norm",
        "step",
    )
    assert [line.role for line in chart.lines] == [
        f"expert:{e}:{tier}" for e in "012" for tier in TIERS
    ]
    with closing(sqlite3.connect(folder / "run.db")) as db:
        for line in chart.lines:
            _, expert, tier = line.role.split(":")
            table = db.execute(f"SELECT step, expert_{expert}_{tier}_norm FROM dynamics").fetchall()
            assert list(zip(line.points.steps, line.points.values, strict=True)) == table
    assert {info.name for info in chart.info} == {
        f"grad/expert/<expert>/{tier}_norm" for tier in TIERS
    }


def test_every_line_that_is_not_computed_is_a_series_of_the_run(
    tmp_path: Path, made: ModuleType
) -> None:
    def spoilt(step: int, values: dict[str, float]) -> dict[str, float]:
        kept = {
            name: value for name, value in values.items() if step != 60 or "/expert/1/" not in name
        }
        if step == 70:
            kept |= {
                "grad/expert/2/top_norm": float("nan"),
                "grad/expert/2/bottom_norm": float("inf"),
            }
        return kept

    folder = made.write_run(tmp_path / "moe", change=spoilt)
    view = view_of(tmp_path)
    with load(folder) as run:
        lines = [line for chart in view.charts if chart.id not in SOUND for line in chart.lines]
        assert len(lines) > 30
        for line in lines:
            same(line, run.series(line.name))
    assert 60 not in row_of("grad/expert/1/top_norm", view).points.steps
    assert row_of("grad/expert/2/top_norm", view).points.nans == [70]


def test_what_is_shown_is_json(tmp_path: Path, made: ModuleType) -> None:
    made.write_run(tmp_path / "moe")
    view = json.loads(encode(view_of(tmp_path)))
    assert view["view"] == "dynamics"
    assert "NaN" not in json.dumps(view["charts"])


# The sound chart


def test_routing_is_divided_out_in_each_layer_so_merged_experts_are_one_curve(
    tmp_path: Path, made: ModuleType
) -> None:
    folder = made.write_run(tmp_path / "moe")
    lines = {line.role: line for line in chart_of(view_of(tmp_path), "sound").lines}
    assert len(lines) == 9
    with load(folder) as run:
        for role, line in lines.items():
            _, expert, tier = role.split(":")
            np.testing.assert_allclose(
                line.points.values, quotient(run, tier, expert, LAYERS), rtol=1e-12
            )
        pooled = (
            run.series("grad/expert/2/top_rms")[1] / run.series("grad/expert/2/routing_weight")[1]
        )
    np.testing.assert_allclose(
        lines["expert:2:top"].points.values, lines["expert:0:top"].points.values, rtol=1e-9
    )
    assert (
        np.abs(pooled / lines["expert:2:top"].points.values - 1).max() > 1e-3
    )  # what pooling would have left


def test_without_layers_the_pooled_numbers_are_divided(tmp_path: Path, made: ModuleType) -> None:
    def pooled(step: int, values: dict[str, float]) -> dict[str, float]:
        kept = {name: value for name, value in values.items() if "layer." not in name}
        return kept | ({"grad/expert/1/routing_weight": 0.0} if step == 30 else {})

    folder = made.write_run(tmp_path / "moe", change=pooled)
    view = view_of(tmp_path)
    chart = chart_of(view, "sound")
    line = next(line for line in chart.lines if line.role == "expert:1:middle")
    with load(folder) as run:
        steps, rms = run.series("grad/expert/1/middle_rms")
        weight = run.series("grad/expert/1/routing_weight")[1]
    kept = steps != 30
    assert list(line.points.steps) == steps[kept].tolist()
    np.testing.assert_allclose(line.points.values, rms[kept] / weight[kept], rtol=1e-12)
    assert "over all layers" in chart.subtitle
    assert not any(chart.section == "Layers" for chart in view.charts)


def test_without_routing_weights_the_title_says_that_nothing_was_divided(
    tmp_path: Path, made: ModuleType
) -> None:
    folder = made.write_run(
        tmp_path / "moe",
        change=lambda _, row: {name: v for name, v in row.items() if "routing_weight" not in name},
    )
    chart = chart_of(view_of(tmp_path), "sound")
    assert "not divided" in chart.title
    with load(folder) as run:
        for line in chart.lines:
            same(line, run.series(line.name))


def test_a_divided_line_is_thinned_without_losing_a_spike_and_lies_on_any_axis(
    tmp_path: Path, made: ModuleType
) -> None:
    def spike(step: int, values: dict[str, float]) -> dict[str, float]:
        return values | (
            {name: 1e3 for name in values if name.endswith("1/top_rms")} if step == 210 else {}
        )

    folder = made.write_run(tmp_path / "moe", change=spike)
    line = next(
        line
        for line in chart_of(view_of(tmp_path, "most=7"), "sound").lines
        if line.role == "expert:1:top"
    )
    with load(folder) as run:
        whole = quotient(run, "top", "1", LAYERS)
    assert len(line.points.steps) <= 7
    assert line.points.high is not None
    assert max(numbers(line.points.high)) == pytest.approx(whole.max(), rel=1e-12)
    assert whole.max() > 1e3
    wall = next(iter(chart_of(view_of(tmp_path, "x=relative"), "sound").lines))
    assert list(wall.points.x or ()) == [float(step) for step in wall.points.steps]
    metric = next(iter(chart_of(view_of(tmp_path, "x=metric:router/all/grad"), "sound").lines))
    assert set(metric.points.x or ()) == {0.02}


def test_what_is_divided_is_never_taken_for_the_series_itself(
    tmp_path: Path, made: ModuleType
) -> None:
    folder = made.write_run(tmp_path / "moe")
    index = RunIndex(tmp_path)
    diagnoses, query = Diagnoses(index), parse_query([("run", "moe")])
    lines = chart_of(answer(index, diagnoses, "dynamics", query), "sound").lines
    with ViewRequest(index, diagnoses, query) as request, load(folder) as run:
        for line in lines:
            own = request.line(request.focus, line.name)
            assert isinstance(own.points, PointsLater)
            same(replace(own, points=own.points.read()), run.series(line.name))


# In words


def test_the_header_has_the_latest_divergence_its_reading_and_the_sound_companion(
    tmp_path: Path, made: ModuleType
) -> None:
    folder = made.write_run(tmp_path / "moe")
    view = view_of(tmp_path)
    with load(folder) as run:
        first, second = (run.series(f"grad/expert/{e}/divergence")[1][-1] for e in "12")
        found = read_experts(run)
        assert found is not None
        assert view.header[1] == (
            f"With the routing weight taken out: {verdict(found, found.answers)}"
        )
    assert view.header[0].startswith(
        f"Divergence score at step 390: {first:.3g} (expert 1), {second:.3g} (expert 2): in between"
        " (above 0.05"
    )


@pytest.mark.parametrize(
    ("values", "reading"),
    [
        ((0.06, 0.2), "meaningful (above 0.05 is meaningful, below 0.01 converging)"),
        ((0.001, 0.009), "converging ("),
        ((0.001, 0.2), "meaningful in some experts ("),
        ((0.01, 0.05), "in between ("),
        ((0.3, float("nan")), "0.3 (expert 1), nan (expert 2): meaningful ("),
    ],
)
def test_the_reading_is_the_source_s(
    tmp_path: Path, made: ModuleType, values: tuple[float, float], reading: str
) -> None:
    last = {f"grad/expert/{e}/divergence": value for e, value in zip("12", values, strict=True)}
    made.write_run(tmp_path / "moe", change=lambda step, row: row | (last if step == 390 else {}))
    assert reading in view_of(tmp_path).header[0]


def test_the_three_questions_are_answered_as_the_command_does(
    tmp_path: Path, made: ModuleType
) -> None:
    folder = made.write_run(tmp_path / "moe")
    view = view_of(tmp_path)
    with load(folder) as run:
        truth = judge(run)
    assert [(a.question, a.verdict, a.source_reading, a.sound_reading) for a in view.answers] == [
        (a.question, SENTENCES[a.verdict], a.source_reading, a.sound_reading) for a in truth.answers
    ]
    assert [a.tone for a in view.answers] == [a.tone for a in truth.answers] == ["warn"] * 3
    assert {answer.run for answer in view.answers} == {"moe"}
    assert f"Try next: {truth.next[0]}" in view.header
    assert truth.health[0] in chart_of(view, "evenness").subtitle


def test_genuine_divergence_is_good_and_too_little_is_unsure(
    tmp_path: Path, made: ModuleType
) -> None:
    made.write_run(tmp_path / "apart", genuine=0.5)
    made.write_run(tmp_path / "young", steps=range(0, 30, 10))
    assert [a.tone for a in view_of(tmp_path, "run=apart").answers if "really" in a.question] == [
        "good"
    ]
    young = view_of(tmp_path, "run=young")
    assert {answer.tone for answer in young.answers} == {"unsure"}
    assert any(answer.missing for answer in young.answers)


def test_norms_that_are_all_zero_are_told_with_the_cause(tmp_path: Path, made: ModuleType) -> None:
    made.write_run(
        tmp_path / "moe",
        change=lambda _, row: {n: 0.0 if "norm" in n else v for n, v in row.items()},
    )
    view = view_of(tmp_path)
    assert view.answers == []
    (line,) = [line for line in view.header if "exactly zero" in line]
    assert "before backward() or after zero_grad()" in line
    assert set(chart_of(view, "tiers").lines[0].points.values) == {0.0}


def test_missing_experts_and_missed_steps_are_told(tmp_path: Path, made: ModuleType) -> None:
    def only_two(_: int, values: dict[str, float]) -> dict[str, float]:
        return {
            name: value
            for name, value in values.items()
            if "expert/2/" not in name and "expert/3/" not in name
        }

    made.write_run(tmp_path / "moe", experts=5, change=only_two, missed=[5])
    view = view_of(tmp_path)
    assert any(line.startswith("No gradient norms of experts 2 and 3:") for line in view.header)
    assert "Step 5: no expert has a gradient." in view.header
    assert [line.role for line in chart_of(view, "tiers").lines][3::3] == [
        "expert:1:top",
        "expert:4:top",
    ]

    alone = {name: value for name, value in made.row(1, 0).items() if "router" not in name}
    with Writer(tmp_path / "alone") as writer:
        writer.put(Row(step=0, wall_time=0.0, values=alone))
    assert any("only expert 0 was logged" in line for line in view_of(tmp_path, "run=alone").header)


def test_an_answer_that_rests_says_as_of_when_it_is(
    tmp_path: Path, made: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        import_module("gradiometer.dashboard.views.dynamics"), "REST_PER_SECOND", 1e9
    )
    with Writer(tmp_path / "moe") as writer:
        for step in range(0, 200, 10):
            writer.put(Row(step=step, wall_time=float(step), values=made.row(3, step)))
        writer.flush()
        early = view_of(tmp_path)
        assert any(line.startswith("Compared: with expert 0") for line in early.header)
        writer.put(Row(step=200, wall_time=200.0, values=made.row(3, 200)))
        writer.flush()
        late = view_of(tmp_path)
    assert late.answers == early.answers
    assert any(line.startswith("Compared (as of step 190): with expert 0") for line in late.header)
    assert late.header[0].startswith("Divergence score at step 200")


# Divergence, layers, routers, histograms


def test_divergence_over_time_has_the_source_s_two_levels(tmp_path: Path, made: ModuleType) -> None:
    made.write_run(tmp_path / "moe")
    view = view_of(tmp_path)
    chart = chart_of(view, "divergence")
    assert [level.value for level in chart.levels] == [0.05, 0.01]
    assert chart.y.scale == "log"
    assert [line.role for line in chart_of(view, "cosine").lines] == [
        "expert:1:bottom",
        "expert:2:bottom",
    ]
    assert [line.role for line in chart_of(view, "log-ratio").lines][::2] == [
        "expert:1:top",
        "expert:1:bottom",
    ]
    assert len(chart_of(view, "routing-weight").lines) == 3
    assert chart_of(view, "routing-weight").levels[0].value == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("query", "tier", "step"), [("", "bottom", None), ("tier=top&at=120", "top", 120)]
)
def test_the_maps_hold_the_cells_of_layer_expert_and_tier(
    tmp_path: Path, made: ModuleType, query: str, tier: str, step: int | None
) -> None:
    def spoilt(at: int, values: dict[str, float]) -> dict[str, float]:
        lost = f"grad/{LAYERS[1]}/expert/2/{tier}_rms"
        values = {name: value for name, value in values.items() if name != lost}
        return values | (
            {f"grad/{LAYERS[0]}/expert/1/{tier}_rms": float("nan")} if at >= 120 else {}
        )

    folder = made.write_run(tmp_path / "moe", change=spoilt, genuine=0.2)
    view = view_of(tmp_path, query)
    with load(folder) as run:
        found = read_experts(run)
        assert found is not None
        values, there = layer_cells(found, found.field(rms_of(tier, layered=True)), step)
        taken = slice(-10, None) if step is None else slice(12, 13)
        rms = {
            (n, e): run.series(f"grad/{LAYERS[n]}/expert/{e}/{tier}_rms")[1][taken]
            for n, e in ((0, 0), (0, 2))
        }
        weight = [
            run.series(f"grad/{LAYERS[0]}/expert/{e}/routing_weight")[1][taken] for e in (0, 2)
        ]
    others = {"top", "bottom", "middle"} - {tier}
    for other in others:  # all tiers, as `plot` has them
        cells = chart_of(view, f"layers-rms-{other}").matrix
        assert cells is not None
        with load(folder) as run:
            one = run.series(f"grad/{LAYERS[0]}/expert/0/{other}_rms")[1][taken]
        assert cells.cells[0][0] == pytest.approx(np.median(one))
    matrix = chart_of(view, "layers-rms").matrix
    assert matrix is not None
    assert (matrix.rows, matrix.columns) == (["0", "1"], ["0", "1", "2"])
    assert matrix.cells[1][2] is None
    assert matrix.cells[0][1] == "NaN"
    assert not there[1, 2]
    for row, cells in zip(values, matrix.cells, strict=True):
        np.testing.assert_array_equal(numbers(cells), row)
    ratio, routed = (chart_of(view, id).matrix for id in ("layers-ratio", "layers-routed"))
    assert ratio is not None
    assert routed is not None
    assert (ratio.colours, ratio.low) == ("diverging", -(ratio.high or 0))
    assert [row[0] for row in ratio.cells] == [0.0, 0.0]
    logs = np.log(rms[0, 2] / rms[0, 0])
    assert ratio.cells[0][2] == pytest.approx(np.median(logs))
    assert routed.cells[0][2] == pytest.approx(np.median(logs - np.log(weight[1] / weight[0])))
    assert routed.cells[0][2] == pytest.approx(np.log(1 + 0.2 * 1.6))


def test_a_cell_without_a_measurement_or_without_a_reference_is_empty(
    tmp_path: Path, made: ModuleType
) -> None:
    def spoilt(at: int, values: dict[str, float]) -> dict[str, float]:
        lost = f"grad/{LAYERS[1]}/expert/2/top_rms" if at == 120 else ""
        values = {name: value for name, value in values.items() if name != lost}
        return values | ({f"grad/{LAYERS[0]}/expert/0/top_rms": 0.0} if at == 120 else {})

    made.write_run(tmp_path / "moe", change=spoilt)
    view = view_of(tmp_path, "tier=top&at=120")
    rms, ratio, routed = (
        chart_of(view, f"layers-{each}").matrix for each in ("rms", "ratio", "routed")
    )
    assert rms is not None
    assert (rms.cells[0][0], rms.cells[1][2]) == (0.0, None)
    for matrix in (ratio, routed):
        assert matrix is not None
        assert matrix.cells[0] == [None, None, None]
        assert (matrix.cells[1][0], matrix.cells[1][2]) == (0.0, None)


def test_a_layer_has_curves_of_its_own(tmp_path: Path, made: ModuleType) -> None:
    folder = made.write_run(tmp_path / "moe")
    view = view_of(tmp_path, f"layer={LAYERS[1]}")
    assert control_of(view, "layer").value == LAYERS[1]
    assert {line.name.split("/")[1] for line in chart_of(view, "layer-tiers").lines} == {LAYERS[1]}
    with load(folder) as run:
        for line in chart_of(view, "layer-sound").lines:
            _, expert, tier = line.role.split(":")
            np.testing.assert_allclose(
                line.points.values, quotient(run, tier, expert, LAYERS[1:]), rtol=1e-12
            )


def test_a_router_is_chosen_and_the_task_s_part_is_told_from_the_auxiliary(
    tmp_path: Path, made: ModuleType
) -> None:
    made.write_run(tmp_path / "moe")
    view = view_of(tmp_path, "router=model.layers.1.moe")
    assert [line.name for line in chart_of(view, "load").lines] == [
        f"router/model.layers.1.moe/load/{e}" for e in "012"
    ]
    roles = [
        (line.name.rpartition("/")[2], line.role)
        for line in chart_of(view, "router-gradient").lines
    ]
    assert roles == [("grad_task", "term:task"), ("grad_aux", "term:aux"), ("grad", "raw")]
    assert control_of(view, "router").options[0].value == "all"
    made.write_run(tmp_path / "plain", terms=False)
    assert "meter.terms" in chart_of(view_of(tmp_path, "run=plain"), "router-gradient").subtitle


def test_histograms_are_the_counts_on_disk(tmp_path: Path, made: ModuleType) -> None:
    folder = made.write_run(tmp_path / "moe")
    view = view_of(tmp_path, "histogram=100")
    chart = chart_of(view, "histograms")
    assert [option.value for option in control_of(view, "histogram").options] == [
        str(s) for s in range(0, 400, 50)
    ]
    with load(folder) as run:
        for bars in chart.bars:
            counts = run.vector(f"histogram/expert/{bars.role.split(':')[1]}", 100).values
            assert sum(bars.values) == counts.sum()
            assert bars.values[0] == counts[0]
            assert bars.categories[0] == "zero"
            place = bars.categories.index("-5 to -4.5")  # log10: the bin before it ends at 1e-5
            assert bars.values[place] == counts[1 + 1 + 2 * (12 - 5)]
    made.write_run(tmp_path / "standard", deep=False)
    empty = chart_of(view_of(tmp_path, "run=standard"), "histograms").empty
    assert empty is not None
    assert 'tier="deep"' in empty.code


# Many experts


def test_of_many_experts_the_furthest_are_shown_and_others_can_be_chosen(
    tmp_path: Path, made: ModuleType
) -> None:
    def far(_: int, values: dict[str, float]) -> dict[str, float]:
        return values | {f"grad/expert/{e}/log_ratio_routed": 1.0 + e for e in (3, 11, 7)}

    made.write_run(tmp_path / "moe", experts=16, layers=1, steps=range(0, 100, 10), change=far)
    view = view_of(tmp_path)
    assert [line.role for line in chart_of(view, "tiers").lines][::3] == [
        f"expert:{e}:top" for e in (0, 3, 7, 11)
    ]
    control = control_of(view, "experts")
    assert (control.kind, control.value, len(control.options)) == ("many", "0,3,7,11", 16)
    for query in ("experts=2,15", "experts=2&experts=15"):
        chosen = view_of(tmp_path, query)
        assert [line.role for line in chart_of(chosen, "tiers").lines][::3] == [
            "expert:2:top",
            "expert:15:top",
        ]
    none = view_of(tmp_path, "experts=")
    assert chart_of(none, "tiers").empty is not None
    load_map, sizes = chart_of(view, "load"), chart_of(view, "histograms").matrix
    assert (load_map.kind, len(load_map.lines)) == ("map", 16)
    assert sizes is not None
    assert sizes.rows == [str(e) for e in range(16)]
    assert sum(sizes.cells[2]) == made.histogram(16, 50, 2).sum()


def test_what_is_rounding_after_routing_does_not_choose_the_experts(
    tmp_path: Path, made: ModuleType
) -> None:
    made.write_run(tmp_path / "moe", experts=9, layers=1, steps=range(0, 100, 10))
    with load(tmp_path / "moe") as run:
        medians = {
            str(e): np.median(run.series(f"grad/expert/{e}/divergence")[1]) for e in range(1, 9)
        }
    furthest = sorted(sorted(medians, key=lambda e: -medians[e])[:3], key=int)
    assert control_of(view_of(tmp_path), "experts").value == ",".join(["0", *furthest])


# Several runs


def test_several_agents_stand_side_by_side_on_one_scale(tmp_path: Path, made: ModuleType) -> None:
    for name, genuine in (("a", 0.0), ("b", 0.4)):
        made.write_run(tmp_path / name, genuine=genuine)
    with Writer(tmp_path / "plain") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"reward": 1.0}))
    view = view_of(tmp_path, "run=plain&run=a&run=b")
    own = [chart for chart in view.charts if chart.section in ("a", "b")]
    assert [chart.id for chart in own] == ["tiers-a", "sound-a", "tiers-b", "sound-b"]
    assert own[0].y == own[2].y
    assert own[1].y == own[3].y
    drawn = np.concatenate(
        [numbers(line.points.values) for chart in own[::2] for line in chart.lines]
    )
    assert (own[0].y.low or 0) <= drawn.min()
    assert drawn.max() <= (own[0].y.high or 0)
    assert {line.run for line in own[2].lines} == {"b"}
    assert [line.label for line in chart_of(view, "divergence").lines] == [
        f"{r} · expert {e}" for r in "ab" for e in "12"
    ]
    assert [answer.run for answer in view.answers] == ["a"] * 3 + ["b"] * 3
    assert "No expert gradients in plain." in view.header
    assert any(line.startswith("b: Divergence score at step 390") for line in view.header)
    assert chart_of(view, "layers-rms").section == "Layers of a"


def test_with_many_runs_four_are_judged_and_eight_have_charts(
    tmp_path: Path, made: ModuleType
) -> None:
    for place in range(10):
        made.write_run(tmp_path / f"r{place}", layers=1, steps=range(0, 50, 10), deep=False)
    view = view_of(tmp_path, "&".join(f"run=r{place}" for place in range(10)))
    assert len({answer.run for answer in view.answers}) == 4
    assert sum("Compared: with" in line for line in view.header) == 4
    assert sum(chart.id.startswith("tiers-") for chart in view.charts) == 8
    assert {line.run for line in chart_of(view, "divergence").lines} == {
        f"r{place}" for place in range(10)
    }
    assert any("first 4 of 10 runs with experts; the first 8" in line for line in view.header)


# Logs of other tools


def test_the_source_s_own_table_is_opened_as_it_is(tmp_path: Path, made: ModuleType) -> None:
    folder = made.write_run(tmp_path / "moe")
    (tmp_path / "logs" / "agent").mkdir(parents=True)
    with load(folder) as run:
        export_dynamics(run, tmp_path / "logs" / "agent" / "dynamics.db")
        view = view_of(tmp_path / "logs")
        for id in ("tiers", "divergence"):
            for line in chart_of(view, id).lines:
                same(line, run.series(line.name))
    assert "log_ratio_routed was not measured" in view.header[1]
    empty = chart_of(view, "sound").empty
    assert empty is not None
    assert "routing_weight" in empty.cause
    assert len(view.answers) == 3
    assert chart_of(view, "histograms").empty is not None
    alone = view_of(tmp_path / "logs" / "agent" / "dynamics.db")
    assert chart_of(alone, "tiers").lines[0].points == chart_of(view, "tiers").lines[0].points


def test_the_source_s_dictionary_in_a_log_of_json_lines_is_understood(
    tmp_path: Path, made: ModuleType
) -> None:
    rows = []
    for step in range(0, 300, 10):
        values = made.expert_values(2, step)
        gradients = {
            f"expert_{e}": {f"{t}_norm": values[e][f"{t}_norm"] for t in TIERS} for e in values
        }
        rows.append(
            {
                "step": step,
                "expert_gradients": gradients,
                "divergence_scores": {"expert_1_divergence": values[1]["divergence"]},
            }
        )
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    view = view_of(tmp_path)
    lines = {line.role: line for line in chart_of(view, "tiers").lines}
    assert list(lines) == [f"expert:{e}:{tier}" for e in "01" for tier in TIERS]
    assert lines["expert:1:top"].points.values == [
        row["expert_gradients"]["expert_1"]["top_norm"] for row in rows
    ]
    assert view.header[0].startswith("Divergence score at step 290")
    assert len(view.answers) == 3


# Nothing to see


def test_a_run_without_experts_says_what_to_do_and_what_it_says_works(tmp_path: Path) -> None:
    import torch

    import gradiometer as gm

    with Writer(tmp_path / "runs" / "plain") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"reward": 1.0}))
    view = view_of(tmp_path / "runs")
    assert view.charts == ()
    assert view.empty is not None
    assert "found no experts" in view.empty.cause
    assert "after backward() and before optimizer.step()" in view.empty.fix
    assert "gradiometer serve dynamics.db" in view.empty.fix
    first, second, router = (torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))

    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.gate = first, second, router

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = router(x).softmax(-1)
            return weights[:, :1] * first(x) + weights[:, 1:] * second(x)

    model = Pair()
    known = {
        "gm": gm,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.01),
        "first": first,
        "second": second,
        "router": router,
        "data": torch.randn(3, 8, 4),
        "loss_of": lambda model, batch: model(batch).pow(2).mean(),
    }
    exec(view.empty.code, known)
    trained = view_of(tmp_path / "runs", "run=moe")
    assert trained.empty is None
    assert [list(line.points.steps) for line in chart_of(trained, "tiers").lines] == [[0, 1, 2]] * 6


@pytest.mark.parametrize(
    ("facts", "events", "cause"),
    [
        (
            {},
            [Event(step=4, kind="experts-missing", message="look after backward()")],
            "Step 4: look after backward().",
        ),
        ({"meter": {"experts_every": None}}, [], "experts_every=None"),
    ],
)
def test_the_run_itself_says_why_there_is_nothing(
    tmp_path: Path, facts: dict[str, Any], events: list[Event], cause: str
) -> None:
    with Writer(tmp_path / "moe", facts=facts) as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"reward": 1.0}))
        for event in events:
            writer.put(event)
    empty = view_of(tmp_path).empty
    assert empty is not None
    assert cause in empty.cause


@pytest.mark.parametrize("name", ["sb3_ppo", "trl_grpo", "cleanrl_ppo"])
def test_a_log_without_experts_says_which_columns_would_be_some(name: str) -> None:
    view = view_of(Path(__file__).parents[1] / "fixtures" / name)
    assert view.empty is not None
    assert "expert_0_top_norm" in view.empty.cause


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("experts=0,9", "unknown expert '9'"),
        ("layer=layer.model.layers.7.moe", "did you mean"),
        ("tier=lowest", "unknown tier 'lowest'"),
        ("at=15", "unknown measured step '15' (there are 40; close: 0, 10, 20)"),
        ("at=soon", "unknown measured step 'soon'"),
        ("histogram=10", "unknown measured step '10' (there are 8; close: 0, 50, 100)"),
        ("router=gate", "unknown router 'gate'"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_there_is(
    tmp_path: Path, made: ModuleType, query: str, message: str
) -> None:
    made.write_run(tmp_path / "moe")
    with pytest.raises(UnknownName) as raised:
        view_of(tmp_path, query)
    assert message in str(raised.value)


# Live


def test_only_new_points_travel_also_of_lines_that_are_computed(
    tmp_path: Path, made: ModuleType
) -> None:
    index = RunIndex(tmp_path)
    diagnoses = Diagnoses(index)

    def ask(query: str) -> View:
        return answer(index, diagnoses, "dynamics", parse_query(parse_qsl(query)))

    with Writer(tmp_path / "moe") as writer:

        def train(*steps: int) -> None:
            for step in steps:
                writer.put(Row(step=step, wall_time=float(step), values=made.row(3, step)))
            writer.flush()

        train(*range(0, 200, 10))
        had = ask("run=moe")
        train(200, 210)
        new = ask(f"run=moe&after={had.cursor}")
        assert new.delta
        now = ask("run=moe")
        for chart in (chart for chart in now.charts if chart.lines):
            before = {(line.name, line.role): line for line in chart_of(had, chart.id).lines}
            after = {(line.name, line.role): line for line in chart_of(new, chart.id).lines}
            for line in chart.lines:
                old, came = before[line.name, line.role].points, after[line.name, line.role].points
                assert list(came.steps) == [200, 210]
                assert [*old.values, *came.values] == list(line.points.values)
        assert chart_of(new, "layers-rms").matrix == chart_of(now, "layers-rms").matrix
        still = ask(f"run=moe&after={new.cursor}")
        assert (still.charts, still.parts) == ([], ())


def test_a_slider_has_few_places_and_any_measured_step_can_be_asked_for(
    tmp_path: Path, made: ModuleType
) -> None:
    made.write_run(tmp_path / "moe", layers=1, steps=range(0, 3000, 10), deep=False, terms=False)
    at = control_of(view_of(tmp_path, "at=1230"), "at")
    assert len(at.options) <= 66
    assert {"0", "1230", "2990", "end"} <= {option.value for option in at.options}


def test_neither_matplotlib_nor_torch_is_imported() -> None:
    script = (
        "import sys, gradiometer.dashboard.views.dynamics; print({'matplotlib', 'torch'} &"
        " set(sys.modules))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "set()"


def test_every_chart_of_lines_is_explained(tmp_path: Path, made: ModuleType) -> None:
    made.write_run(tmp_path / "moe")
    for chart in view_of(tmp_path).charts:
        if chart.lines:
            assert chart.info, chart.id
