"""The tab Compare: numbers against the runs themselves, groups, settings, other libraries' names,
and live growth."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.charts.model import Chart, Line
from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import Query
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.shape import View
from gradiometer.errors import UnknownName, UsageError
from gradiometer.records import Row
from gradiometer.store.importers import open_log
from gradiometer.store.writer import Writer

FIXTURES = Path(__file__).parents[1] / "fixtures"
TENTH = 10

COMPARE = import_module("gradiometer.dashboard.views.compare")


def write(
    folder: Path,
    series: Mapping[str, Mapping[int, float]],
    config: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    facts = {
        "started": "2026-01-01T00:00:00+00:00",
        **({} if config is None else {"config": dict(config)}),
        **more,
    }
    with Writer(folder, facts=facts) as writer:
        put(writer, series)


def put(writer: Writer, series: Mapping[str, Mapping[int, float]]) -> None:
    for step in sorted({step for points in series.values() for step in points}):
        values = {name: points[step] for name, points in series.items() if step in points}
        writer.put(Row(step=step, wall_time=1_000.0 + step, values=values, env_steps=8 * step))


def noise(seed: int, steps: Sequence[int], around: float = 0.0) -> dict[int, float]:
    values = np.random.default_rng(seed).normal(around, 1.0, size=len(steps))
    return dict(zip(steps, values.tolist(), strict=True))


def seeds(root: Path) -> list[str]:
    """Two recipes of three seeds each, and one run of its own."""
    steps = range(0, 200, 2)
    for lr in (0.1, 0.2):
        for seed in range(3):
            place = int(10 * lr) + 10 * seed
            series = {
                "reward": noise(place, steps),
                "grad/all/norm/raw": {
                    step: math.exp(value) for step, value in noise(place + 1, steps).items()
                },
                "entropy": noise(place + 2, steps),
                "other/a": noise(place + 3, steps),
                "other/b": noise(place + 4, steps),
            }
            write(
                root / f"lr{lr}" / str(seed),
                series,
                {"seed": seed, "optim": {"lr": lr}, "gamma": 0.9},
                versions={"torch": "2"},
            )
    write(
        root / "alone",
        {"reward": noise(99, steps)},
        {"seed": 0, "optim": {"lr": 0.3}, "gamma": 0.9},
        versions={"torch": "3"},
    )
    return [*(f"lr{lr}/{seed}" for lr in (0.1, 0.2) for seed in range(3)), "alone"]


def see(root: Path, runs: Sequence[str], after: str = "", **given: Any) -> View:
    ours = {name: given.pop(name) for name in ("x", "first", "last", "most") if name in given}
    options = {
        name: (value,) if isinstance(value, str) else tuple(value) for name, value in given.items()
    }
    index = RunIndex(root)
    made = answer(
        index,
        Diagnoses(index),
        "compare",
        Query(runs=tuple(runs), options=options, after=after, **ours),
    )
    assert json.loads(encode(made))["view"] == "compare"
    return made


def chart(view: View, title: str) -> Chart:
    return next(chart for chart in view.charts if chart.title == title)


def line(chart: Chart, run: str) -> Line:
    return next(line for line in chart.lines if line.run == run)


def series(root: Path, run: str, name: str) -> tuple[list[int], list[float]]:
    with open_log(root / run) as log:
        steps, values = log.series(name)
    return steps.tolist(), values.tolist()


def test_every_run_of_its_own_has_the_numbers_of_its_file(tmp_path: Path) -> None:
    runs = seeds(tmp_path)
    view = see(tmp_path, runs, group="none")
    assert [chart.title for chart in view.charts if chart.kind == "lines"] == [
        "reward",
        "grad/all/norm/raw",
        "entropy",
    ]
    for picture in view.charts[:3]:
        assert {line.role for line in picture.lines} == {""}
        for drawn in picture.lines:
            assert (drawn.points.steps, drawn.points.values) == series(
                tmp_path, drawn.run, picture.title
            )
    assert len(chart(view, "reward").lines) == 7
    assert chart(view, "entropy").subtitle == "1 of 7 runs do not have it: alone"
    assert chart(view, "grad/all/norm/raw").y.scale == "log"
    assert chart(view, "reward").info[0].name == "reward"


def test_seeds_are_averaged_with_their_runs_faint_behind_and_a_run_of_its_own_is_left_alone(
    tmp_path: Path,
) -> None:
    view = see(tmp_path, seeds(tmp_path))
    assert next(control for control in view.controls if control.name == "group").value == "seed"
    lines = chart(view, "reward").lines
    assert [line.role for line in lines] == ["faint"] * 6 + ["", "mean", "mean"]
    assert [line.run for line in lines[-3:]] == ["alone", "group:lr0.1", "group:lr0.2"]
    assert {line.key for line in lines[:3]} == {"group:lr0.1"}
    mean = lines[-2]
    assert mean.label == "lr0.1: mean ± std of 3 runs"
    values = np.array([series(tmp_path, f"lr0.1/{seed}", "reward")[1] for seed in range(3)])
    assert mean.points.steps == list(range(0, 200, 2))
    assert np.allclose(mean.points.values, values.mean(axis=0))
    assert np.allclose(mean.points.low, values.mean(axis=0) - values.std(axis=0, ddof=1))
    assert np.allclose(mean.points.high, values.mean(axis=0) + values.std(axis=0, ddof=1))
    assert any("one sample standard deviation" in line for line in view.header)


def test_on_a_log_axis_the_band_ends_at_the_lowest_run_where_it_would_pass_zero(
    tmp_path: Path,
) -> None:
    for seed, value in enumerate((0.1, 0.1, 10.0)):
        write(
            tmp_path / str(seed),
            {"grad/all/norm/raw": {1: value, 2: 1.0 + value / 100}},
            {"seed": seed},
        )
    mean = chart(see(tmp_path, ["0", "1", "2"]), "grad/all/norm/raw").lines[-1]
    assert mean.points.low is not None
    assert mean.points.low[0] == 0.1
    assert mean.points.low[1] == pytest.approx(
        np.mean([1.001, 1.001, 1.1]) - np.std([1.001, 1.001, 1.1], ddof=1)
    )


def test_runs_with_other_cadences_are_interpolated_and_the_label_says_so(tmp_path: Path) -> None:
    write(tmp_path / "0", {"reward": {0: 0.0, 10: 10.0, 20: 20.0}}, {"seed": 0})
    write(tmp_path / "1", {"reward": {5: 100.0, 15: 200.0, 25: 300.0}}, {"seed": 1})
    mean = chart(see(tmp_path, ["0", "1"]), "reward").lines[-1]
    assert mean.label.endswith("mean ± std of 2 runs, interpolated")
    assert (mean.points.steps, mean.points.values) == ([5, 10, 15, 20], [52.5, 80.0, 107.5, 135.0])


def test_runs_that_share_no_steps_have_no_mean_and_the_chart_says_so(tmp_path: Path) -> None:
    write(tmp_path / "0", {"reward": {0: 0.0, 1: 1.0}}, {"seed": 0})
    write(tmp_path / "1", {"reward": {5: 0.0, 6: 1.0}}, {"seed": 1})
    picture = chart(see(tmp_path, ["0", "1"]), "reward")
    assert [line.role for line in picture.lines] == ["faint", "faint"]
    assert picture.subtitle == "runs: no mean, its runs share no steps"


def test_a_nan_of_one_seed_is_no_number_of_the_mean(tmp_path: Path) -> None:
    write(tmp_path / "0", {"reward": {0: 0.0, 1: math.nan}}, {"seed": 0})
    write(tmp_path / "1", {"reward": {0: 2.0, 1: 1.0}}, {"seed": 1})
    faint, _, mean = chart(see(tmp_path, ["0", "1"]), "reward").lines
    assert (faint.points.values, faint.points.nans) == ([0.0, "NaN"], [1])
    assert (mean.points.values, mean.points.nans) == ([1.0, "NaN"], [1])


@pytest.mark.parametrize("x", ["env_steps", "metric:other"])
def test_on_another_axis_a_mean_stands_where_its_runs_stand_on_average(
    tmp_path: Path, x: str
) -> None:
    for seed in range(2):
        points = {step: float(step + seed) for step in range(5)}
        write(
            tmp_path / str(seed),
            {"reward": points, "other": {step: 8.0 * step for step in range(5)}},
            {"seed": seed},
        )
    view = see(tmp_path, ["0", "1"], x=x, metric="reward")
    mean = chart(view, "reward").lines[-1]
    assert mean.points.x == [0.0, 8.0, 16.0, 24.0, 32.0]
    assert any(x in said for said in view.header)


def test_match_draws_every_series_it_finds_and_metric_those_that_are_named(tmp_path: Path) -> None:
    runs = seeds(tmp_path)
    assert [c.title for c in see(tmp_path, runs, match="^other/").charts if c.kind == "lines"] == [
        "other/a",
        "other/b",
    ]
    both = see(tmp_path, runs, match="^other/", metric="entropy")
    assert [c.title for c in both.charts if c.kind == "lines"] == ["entropy", "other/a", "other/b"]
    for given in ("entropy,other/b", ("entropy", "other/b")):
        named = see(tmp_path, runs, metric=given)
        assert [c.title for c in named.charts if c.kind == "lines"] == ["entropy", "other/b"]
        assert (
            next(control for control in named.controls if control.name == "metric").value
            == "entropy,other/b"
        )
    offered = next(control for control in both.controls if control.name == "metric").options
    assert [option.value for option in offered] == ["entropy", "other/a", "other/b"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"match": "("}, r"match '\(' is not a regular expression"),
        ({"match": "zzz"}, "no series of these runs matches 'zzz'; there are 5"),
        ({"metric": "entropi"}, "unknown metric 'entropi'; did you mean 'entropy'"),
        ({"group": "optim.l"}, r"unknown grouping 'optim\.l'; did you mean 'optim\.lr'"),
    ],
)
def test_what_cannot_be_asked_is_an_error_that_says_why(
    tmp_path: Path, given: dict[str, str], says: str
) -> None:
    with pytest.raises((UsageError, UnknownName), match=says):
        see(tmp_path, seeds(tmp_path), **given)


def test_too_many_matches_are_cut_and_the_header_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a", {f"s/{place}": {0: 1.0} for place in range(30)})
    write(tmp_path / "b", {"s/0": {0: 1.0}})
    view = see(tmp_path, ["a", "b"], match="s/")
    assert len([chart for chart in view.charts if chart.kind == "lines"]) == 24
    assert "24 of 30 matching series are drawn: a narrower match shows the others." in view.header


def test_by_a_setting_and_by_name(tmp_path: Path) -> None:
    runs = seeds(tmp_path)
    by_lr = chart(see(tmp_path, runs, group="optim.lr"), "reward")
    assert [line.run for line in by_lr.lines if line.role == "mean"] == [
        "group:optim.lr = 0.1",
        "group:optim.lr = 0.2",
    ]
    by_seed = chart(see(tmp_path, runs, group="config.seed"), "reward")
    assert [line.label for line in by_seed.lines if line.role == "mean"] == [
        "seed = 0: mean ± std of 3 runs",
        "seed = 1: mean ± std of 2 runs",
        "seed = 2: mean ± std of 2 runs",
    ]
    by_name = chart(see(tmp_path, runs, group="name"), "reward")
    assert [line.run for line in by_name.lines if line.role == "mean"] == [
        "group:lr0.1",
        "group:lr0.2",
    ]


def test_the_table_says_where_each_run_ended_up(tmp_path: Path) -> None:
    view = see(tmp_path, seeds(tmp_path))
    table = next(chart for chart in view.charts if chart.id == "compare-summary").table
    assert table is not None
    assert list(table.columns) == [
        "metric",
        "run",
        "last",
        "mean of the last 10 %",
        "min",
        "max",
        "best at step",
    ]
    assert len(table.cells) == 7 + 6 + 6
    row = next(row for row in table.cells if row[:2] == ["reward", "alone"])
    steps, values = series(tmp_path, "alone", "reward")
    numbers = (values[-1], np.mean(values[-TENTH:]), min(values), max(values))
    assert row[2:6] == [float(f"{number:.5g}") for number in numbers]
    assert row[6] == steps[int(np.argmax(values))]
    norm = next(row for row in table.cells if row[0] == "grad/all/norm/raw")
    assert norm[6] is None  # neither more nor less of it is better


def test_the_groups_are_told_with_their_spread(tmp_path: Path) -> None:
    view = see(tmp_path, seeds(tmp_path))
    table = next(chart for chart in view.charts if chart.id == "compare-groups").table
    assert table is not None
    row = next(row for row in table.cells if row[:2] == ["reward", "lr0.1"])
    lasts = [series(tmp_path, f"lr0.1/{seed}", "reward")[1][-1] for seed in range(3)]
    assert row[2] == 3
    assert row[3:5] == [
        float(f"{number:.5g}") for number in (np.mean(lasts), np.std(lasts, ddof=1))
    ]


def test_only_settings_that_differ_are_facts_and_the_equal_ones_are_counted(tmp_path: Path) -> None:
    view = see(tmp_path, seeds(tmp_path))
    assert all(fact.differs for fact in view.facts)
    assert [(fact.group, fact.name) for fact in view.facts] == [
        ("config", "seed"),
        ("config", "optim.lr"),
        ("versions", "torch"),
    ]
    assert view.facts[1].values == {
        **{f"lr{lr}/{s}": str(lr) for lr in (0.1, 0.2) for s in range(3)},
        "alone": "0.3",
    }
    assert (
        view.header[-1]
        == "Config: 2 settings differ (seed, optim.lr), 1 are equal. Of versions, git and the rest"
        " 1 differ, 0 are equal."
    )


def test_logs_of_other_libraries_stand_beside_ours_with_the_sign_put_right(tmp_path: Path) -> None:
    write(tmp_path / "ours", {"entropy": {0: 0.7, 9_984: 0.5}, "reward": {0: 1.0}}, {"seed": 0})
    (tmp_path / "sb3").mkdir()
    shutil.copy(FIXTURES / "sb3_ppo" / "progress.csv", tmp_path / "sb3")
    view = see(tmp_path, ["ours", "sb3"])
    picture = chart(view, "entropy")
    theirs = line(picture, "sb3")
    steps, logged = series(tmp_path, "sb3", "train/entropy_loss")
    assert theirs.name == "train/entropy_loss"
    assert (theirs.points.steps, theirs.points.values) == (steps, [-value for value in logged])
    assert picture.subtitle == "sb3 logs it as train/entropy_loss, its sign turned"
    assert line(chart(view, "reward"), "sb3").name == "rollout/ep_rew_mean"
    assert "Without a config: sb3." in view.header[-1]


def test_a_range_of_steps_holds_for_curves_means_and_tables(tmp_path: Path) -> None:
    view = see(tmp_path, seeds(tmp_path), first=50, last=100, metric="reward")
    for drawn in chart(view, "reward").lines:
        assert drawn.points.steps == list(range(50, 101, 2))
    table = view.charts[-1].table
    assert table is not None
    assert {50 <= row[6] <= 100 for row in table.cells} == {True}


def test_thinned_curves_keep_their_spikes_and_means_their_width(tmp_path: Path) -> None:
    for seed in range(2):
        points = dict.fromkeys(range(2000), 1.0 + seed)
        points[777] = 50.0
        write(tmp_path / str(seed), {"reward": points}, {"seed": seed})
    faint, _, mean = chart(see(tmp_path, ["0", "1"], most=100), "reward").lines
    assert len(faint.points.steps) <= 101
    assert max(faint.points.high or []) == 50.0
    assert np.allclose(
        np.array(mean.points.high[:30]) - np.array(mean.points.low[:30]), 2 * math.sqrt(0.5)
    )


@pytest.mark.slow
def test_with_many_runs_a_line_has_fewer_points(tmp_path: Path) -> None:
    for seed in range(50):
        write(
            tmp_path / str(seed),
            {"reward": {step: float(step) for step in range(500)}},
            {"seed": seed},
        )
    view = see(tmp_path, [str(seed) for seed in range(50)])
    lengths = {len(line.points.steps) for line in chart(view, "reward").lines}
    assert max(lengths) <= 161
    assert chart(view, "reward").lines[-1].label == "runs: mean ± std of 50 runs"


def test_only_what_is_new_travels_also_of_the_means(tmp_path: Path) -> None:
    quiet = {"started": "2026-01-01T00:00:00+00:00"}
    writers = [
        Writer(tmp_path / str(seed), facts={**quiet, "config": {"seed": seed}}) for seed in range(2)
    ]
    try:
        for seed, writer in enumerate(writers):
            put(writer, {"reward": {step: float(step + seed) for step in range(10)}})
            writer.flush()
        whole = see(tmp_path, ["0", "1"])
        put(writers[0], {"reward": {step: float(step) for step in range(10, 15)}})
        writers[0].flush()
        ahead = see(tmp_path, ["0", "1"], after=whole.cursor)
        assert ahead.delta
        assert [(line.run, line.points.steps) for line in ahead.charts[0].lines] == [
            ("0", [10, 11, 12, 13, 14])
        ]
        put(writers[1], {"reward": {step: float(step + 1) for step in range(10, 13)}})
        writers[1].flush()
        together = see(tmp_path, ["0", "1"], after=ahead.cursor)
        assert together.delta
        drawn = {line.run: line.points for line in together.charts[0].lines}
        assert drawn["1"].steps == [10, 11, 12]
        assert (drawn["group:runs"].steps, drawn["group:runs"].values) == (
            [10, 11, 12],
            [10.5, 11.5, 12.5],
        )
    finally:
        for writer in writers:
            writer.close()
    now = chart(see(tmp_path, ["0", "1"]), "reward").lines[-1].points
    before = chart(whole, "reward").lines[-1].points
    assert [*before.values, *drawn["group:runs"].values] == now.values


def test_a_seed_that_comes_makes_the_whole_view_come(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path / str(seed), {"reward": {0: 1.0, 1: 2.0}}, {"seed": seed})
    with Writer(tmp_path / "2", facts={"config": {"seed": 2}}) as writer:
        put(writer, {"other": {0: 1.0}})
        writer.flush()
        view = see(tmp_path, ["0", "1", "2"], metric="reward")
        assert chart(view, "reward").lines[-1].label == "runs: mean ± std of 2 runs"
        put(writer, {"reward": {0: 3.0, 1: 3.0}})
        writer.flush()
        now = see(tmp_path, ["0", "1", "2"], metric="reward", after=view.cursor)
    assert not now.delta
    assert chart(now, "reward").lines[-1].label == "runs: mean ± std of 3 runs"


def test_a_run_that_stands_still_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_so_far: list[str] = []
    real = COMPARE.read

    def counted(log: Any, source: Any, *ends: Any) -> Any:
        read_so_far.append(source.series)
        return real(log, source, *ends)

    monkeypatch.setattr(COMPARE, "read", counted)
    runs = seeds(tmp_path)
    first = see(tmp_path, runs)
    assert len(read_so_far) == 7 + 6 + 6
    assert replace(see(tmp_path, runs), cursor="") == replace(first, cursor="")
    assert len(read_so_far) == 7 + 6 + 6


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = COMPARE.ByteCache(5_000, COMPARE._weight)
    monkeypatch.setattr(COMPARE, "_KEPT", kept)
    see(tmp_path, seeds(tmp_path))
    assert 3_000 < kept.held <= 5_000
    assert len(kept) == 2  # of a hundred points of sixteen bytes each


def test_one_run_and_runs_without_anything_say_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "one", {"reward": {0: 1.0}})
    write(tmp_path / "none", {})
    assert see(tmp_path, ["one"]).header[0] == "One run: choose more in the picker to compare them."
    empty = see(tmp_path, ["none"]).empty
    assert empty is not None
    assert empty.title == "These runs have no data yet"
