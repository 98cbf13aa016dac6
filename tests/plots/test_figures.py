"""What a reader of a figure relies on: intervals are there, missing looks missing, below noise
looks below noise."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from gradiometer.charts.analysis import AnalysisStep, from_flat
from gradiometer.errors import UnknownName, UsageError
from gradiometer.plots.analysis import (
    draw_comparison,
    draw_losses,
    draw_normed,
    draw_norms,
    draw_reward_std,
    draw_summary,
)
from gradiometer.plots.files import FIGURES, make_folder, write_step, write_whole
from gradiometer.plots.panels import compact
from gradiometer.plots.scales import set_scale
from gradiometer.plots.style import OTHER_COLOURS, TERM_COLOURS, check_format, render, styled

OF_THE_SOURCE = (
    "sample_count",
    "sample_pct",
    "reward_std_mean",
    "group_rv_count",
    "per_sample",
    "per_token",
    "loss",
)


@pytest.fixture
def step(synthetic: ModuleType) -> AnalysisStep:
    return AnalysisStep(
        step=1, metrics=synthetic.metrics(1), circumstances=synthetic.circumstances(), run="ppo"
    )


def source_only(synthetic: ModuleType) -> dict[str, float]:
    """What the source's own reporter logs: no signal, no null, no cosines; and this run has no
    KL."""
    values = synthetic.metrics(1, null=False, terms=("task", "entropy"))
    return {
        name: value
        for name, value in values.items()
        if name.split("/")[2] in (*OF_THE_SOURCE, "task", "entropy")
        and not name.startswith("grad_norm/between")
    }


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[attr-defined]


def panel(figure: Figure, title: str) -> Axes:
    (found,) = [ax for ax in figure.axes if ax.get_title(loc="left") == title]
    return found


def hatches(ax: Axes) -> list[Rectangle]:
    return [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_hatch()]


def heights(ax: Axes, **look: Any) -> list[float]:
    """The values of the markers on a panel that look like this."""
    lines = [
        line
        for line in ax.lines
        if all(getattr(line, f"get_{key}")() == value for key, value in look.items())
    ]
    return [
        float(y)
        for line in lines
        for y in line.get_ydata()
        if line.get_marker() not in ("_", "None")
    ]


def is_interval(line: Line2D) -> bool:
    places = list(line.get_xdata())  # type: ignore[arg-type]
    return len(places) == 2 and places[0] == places[1] and line.get_linestyle() == "-"


def test_the_norm_panel_shows_norm_signal_interval_and_null(
    step: AnalysisStep, synthetic: ModuleType
) -> None:
    with styled():
        ax = panel(draw_norms(step), "task")
    values = synthetic.metrics(1)
    for kind in ("", "signal/", "null/", "null_signal/"):
        for bucket in step.buckets:
            assert values[f"grad_norm/{bucket}/{kind}task"] in heights(ax)
    drawn = [tuple(line.get_ydata()) for line in ax.lines if is_interval(line)]
    for bucket in synthetic.BUCKETS[:5]:
        start = f"grad_norm/{bucket}/signal"
        assert (values[f"{start}_low/task"], values[f"{start}_high/task"]) in drawn
    assert len(drawn) == 12, (
        "bucket_6 has three units and no interval; the others and all have two each"
    )


def test_a_signal_below_noise_is_drawn_below_zero(step: AnalysisStep) -> None:
    with styled():
        ax = panel(draw_norms(step), "task")
    assert -0.12 in heights(ax)
    assert ax.get_ylim()[0] < -0.12
    assert "below 0: less than noise" in words(ax.figure)  # type: ignore[arg-type]


def test_a_signal_without_an_interval_is_half_filled(step: AnalysisStep) -> None:
    with styled():
        ax = panel(draw_norms(step), "task")
    assert heights(ax, fillstyle="left") == [step.metrics["grad_norm/bucket_6/signal/task"]]


def test_a_missing_value_is_hatched_and_never_zero(step: AnalysisStep) -> None:
    with styled():
        ax = panel(draw_norms(step), "kl")
        losses = panel(draw_losses(step), "kl")
    for found in (ax, losses):
        (mark,) = hatches(found)
        assert mark.get_x() < 1 < mark.get_x() + mark.get_width(), "over bucket_2"
        assert 0.0 not in heights(found)


def test_a_term_that_was_not_in_the_loss_says_so(synthetic: ModuleType) -> None:
    analysis = from_flat(source_only(synthetic), step=1)
    with styled():
        figure = draw_norms(analysis)
        assert "kl: no such term" in words(figure)
        assert "no kl loss" in words(draw_losses(analysis))
        assert "kl: no such term" in words(draw_summary(analysis))
    assert heights(panel(figure, "kl")) == []


@pytest.mark.slow
def test_a_term_without_a_gradient_path_is_called_that(synthetic: ModuleType) -> None:
    values = synthetic.metrics(1, terms=("task", "kl"))
    about = {**synthetic.circumstances(), "terms": ["task", "kl"], "dead": ["entropy"]}
    analysis = AnalysisStep(step=1, metrics=values, circumstances=about)
    with styled():
        for draw in (draw_norms, draw_summary, draw_normed):
            assert "entropy: no gradient path" in words(draw(analysis))


def test_the_figures_of_a_source_log_say_what_it_lacks(synthetic: ModuleType) -> None:
    analysis = from_flat(source_only(synthetic), step=1)
    with styled():
        summary, normed = draw_summary(analysis), draw_normed(analysis)
        assert "not in this log: SNR and shares, cosines" in words(summary)
        assert "noise not taken off" in words(summary)
        assert words(normed).count("not in this log") == 2
        assert "no group table in this log" in words(draw_reward_std(analysis))


def test_a_nan_is_written_as_nan(step: AnalysisStep) -> None:
    values = {
        **step.metrics,
        "grad_norm/bucket_3/task": math.nan,
        "grad_norm/bucket_4/loss/policy": math.inf,
    }
    analysis = AnalysisStep(step=1, metrics=values)
    with styled():
        assert "NaN" in words(draw_norms(analysis))
        assert "Inf" in words(draw_losses(analysis))


@pytest.mark.parametrize(
    ("drawn", "judged", "scale"),
    [
        ([1.0, 30.0], None, "linear"),
        ([1.0, 40.0], None, "log"),
        ([0.0, 1.0, 40.0], None, "function"),
        ([-1.0, 1.0, 40.0], None, "function"),
        ([-1.0, 2.0, 1e-6], [2.0, 1.0], "linear"),
        ([math.nan], None, "linear"),
        ([], None, "linear"),
        ([0.0, 0.0], None, "linear"),
        ([-2.0, -3.0], None, "linear"),
    ],
)
def test_the_axis_follows_the_range(
    drawn: list[float], judged: list[float] | None, scale: str
) -> None:
    ax = Figure().subplots()
    assert set_scale(ax, drawn, judged=judged) == scale == ax.get_yscale()
    low, high = ax.get_ylim()
    assert low < high
    assert all(low <= number <= high for number in drawn if math.isfinite(number))


def test_a_broken_axis_keeps_the_order_of_all_numbers() -> None:
    ax = Figure().subplots()
    numbers = [-0.9, -0.3, 0.0, 1e-5, 2e-4, 1e-3, 0.5, 1.0]
    set_scale(ax, numbers, judged=[2e-4, 1.0])
    places = [float(ax.transData.transform((0.0, number))[1]) for number in numbers]
    assert places == sorted(places)
    assert len(set(places)) == len(numbers)
    back = [float(ax.transData.inverted().transform((0.0, place))[1]) for place in places]
    assert back == pytest.approx(numbers, abs=1e-9)
    assert [text.get_text() for text in ax.get_yticklabels()][:2] == ["−0.9", "0"]


@pytest.mark.slow
def test_the_comparison_shares_its_axes_and_names_the_steps(synthetic: ModuleType) -> None:
    steps = [from_flat(synthetic.metrics(number), step=number) for number in (0, 20, 40)]
    with styled():
        figure = draw_comparison(steps, mode="grpo")
    assert [ax.get_title(loc="left") for ax in figure.axes[:3]] == ["step 0", "step 20", "step 40"]
    assert len(figure.axes) == 9
    for row in range(3):
        assert len({ax.get_ylim() for ax in figure.axes[3 * row : 3 * row + 3]}) == 1
    assert "(GRPO)" in words(figure)


@pytest.mark.slow
def test_steps_with_other_terms_and_buckets_compare(synthetic: ModuleType) -> None:
    values = synthetic.metrics(1, terms=("task", "entropy"))
    fewer = {name: value for name, value in values.items() if "bucket_6" not in name}
    with styled():
        figure = draw_comparison(
            [from_flat(fewer, step=0), from_flat(synthetic.metrics(2), step=1)]
        )
        render(figure, "png")
    assert "kl: no such term" in words(figure)
    left = figure.axes[4]
    labels = [label.get_text() for label in left.get_yticklabels() if label.get_visible()]
    assert len(labels) > 2, "the row keeps its numbers though its first panel is empty"
    assert left.get_ylim() == figure.axes[5].get_ylim()


def many_buckets(values: dict[str, float], number: int) -> dict[str, float]:
    return {
        name.replace("bucket_3", f"bucket_{place}"): value
        for place in range(1, number + 1)
        for name, value in values.items()
        if name.startswith(("grad_norm/bucket_3/", "grad_norm/all/"))
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "one bucket",
        "16 buckets",
        pytest.param("48 buckets", marks=pytest.mark.proof),
        "own terms",
        "counts only",
    ],
)
def test_odd_analyses_are_drawn(case: str, synthetic: ModuleType) -> None:
    values = synthetic.metrics(1)
    cases = {
        "one bucket": {name: value for name, value in values.items() if "/all/" in name},
        "16 buckets": many_buckets(values, 16),
        "48 buckets": many_buckets(values, 48),
        "own terms": synthetic.metrics(1, terms=("policy", "value", "aux_1", "aux_2")),
        "counts only": {name: value for name, value in values.items() if name.endswith("count")},
    }
    analysis = from_flat(cases[case], step=3)
    with styled():
        for draw in FIGURES.values():
            draw(analysis).draw_without_rendering()


@pytest.mark.slow
@pytest.mark.usefixtures("sketched")
def test_the_files_of_a_step_have_the_names_of_the_source(
    tmp_path: Path, synthetic: ModuleType, step: AnalysisStep
) -> None:
    files = write_step(step, tmp_path)
    assert [file.name for file in files] == [
        "gradient_analysis_summary_step_1.png",
        "gradient_analysis_plots_step_1.png",
        "gradient_analysis_loss_plots_step_1.png",
        "gradient_analysis_reward_std_step_1.png",
        "gradient_analysis_normed_grads_step_1.png",
        "gradient_analysis_metrics_step_1.json",
        "gradient_analysis_bucket_rv_table_step_1.csv",
    ]
    assert sorted(tmp_path.iterdir()) == sorted(files), "nothing else is left behind"
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[:5])
    assert json.loads(files[5].read_text()) == pytest.approx(synthetic.metrics(1))
    assert list(csv.reader(io.StringIO(files[6].read_text()))) == [
        ["bucket", "group_id", "reward_std"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_the_same_figure_gives_the_same_bytes(kind: str, step: AnalysisStep) -> None:
    made = []
    for _ in range(2):
        with styled():
            made.append(render(draw_reward_std(step), kind))
    assert made[0] == made[1]


@pytest.mark.slow
def test_a_pdf_carries_its_fonts_as_truetype(step: AnalysisStep) -> None:
    with styled():
        matplotlib.rcParams["pdf.compression"] = 0
        pdf = render(draw_norms(step), "pdf")
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


@pytest.mark.slow
def test_drawing_leaves_the_users_matplotlib_alone(step: AnalysisStep) -> None:
    before = dict(matplotlib.rcParams)
    with styled():
        draw_reward_std(step)
    assert dict(matplotlib.rcParams) == before
    code = (
        "import sys; from gradiometer.plots.files import FIGURES; from gradiometer.charts.analysis"
        " import from_flat;from gradiometer.plots.style import styled, render;assert 'matplotlib'"
        " not in sys.modules;step = from_flat({'grad_norm/all/sample_count': 4,"
        " 'grad_norm/all/task': 1.0}, step=1)\nwith styled(): [render(draw(step), 'png') for draw"
        " in FIGURES.values()]\nassert 'matplotlib.pyplot' not in sys.modules and 'torch' not in"
        " sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_colours_and_markers_differ() -> None:
    colours = [TERM_COLOURS[name] for name in ("task", "entropy", "kl", "total")] + list(
        OTHER_COLOURS
    )
    assert len(colours) == len(set(colours))


def test_an_unknown_format_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(UnknownName, match=r"unknown format 'bmp' \(there are png, pdf, svg\)"):
        check_format("bmp")


def test_output_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write into"):
        make_folder(tmp_path / "file" / "inside")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        write_whole(tmp_path / "taken", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_counts_are_short() -> None:
    shown = [
        compact(number)
        for number in (None, math.nan, 3.0, 940.0, 1234.0, 35_000.0, 1_100_000.0, 2.5)
    ]
    assert shown == ["?", "NaN", "3", "940", "1.2k", "35k", "1.1M", "2.5"]
