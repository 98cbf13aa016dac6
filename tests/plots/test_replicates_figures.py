"""The figures of replicates show the records' own numbers, with intervals, and what is undefined as
undefined."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import gradiometer as gm
from gradiometer.charts.studies import (
    ESS,
    NORM,
    PROJECTION,
    SNR,
    TOP_SHARE,
    TRACE,
    Studies,
    read_studies,
)
from gradiometer.errors import UsageError
from gradiometer.plots.files import RECORDS_NAME, write_replicates
from gradiometer.plots.scales import log_scale, signed_scale
from gradiometer.plots.studies import (
    draw_curve,
    draw_ratio,
    draw_replicates,
    draw_variance,
    look_of,
)
from gradiometer.plots.style import GREY, render, sheet, styled
from gradiometer.records import Row, Table
from gradiometer.store.strictjson import to_json
from gradiometer.store.writer import Writer
from gradiometer.words import typeset

pytestmark = pytest.mark.slow


def load_bandits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bandits", Path(__file__).with_name("bandits.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BANDITS = load_bandits()


def read(folder: Path) -> Studies:
    with gm.load(folder) as run:
        found = read_studies(run)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pomo and rloo differ by n/(n−1) in every gradient; pomo and pomo under another seed by chance
    alone."""
    studies = [BANDITS.study("pomo"), BANDITS.study("rloo"), BANDITS.study("pomo", seed=5)]
    folder: Path = BANDITS.keep_comparison(
        tmp_path_factory.mktemp("runs") / "compared", studies, ["plain", "loo", "again"]
    )
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = (32, 2, 8)
    studies = [BANDITS.study(rollouts=n, controls=False) for n in values]
    folder: Path = BANDITS.keep_curve(
        tmp_path_factory.mktemp("runs") / "swept", "rollouts", values, studies
    )
    return folder


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole study, one of a single replicate, one without the extended pass, and one on three
    instances."""
    long = {"k": 3, "baseline": "sample_loo_scaled"}
    studies = [
        BANDITS.study("pomo"),
        BANDITS.study("rloo", num_replicates=1),
        BANDITS.study("maxk", options=long, extended=False),
        BANDITS.study("grpo", num=3),
    ]
    folder: Path = BANDITS.keep(tmp_path_factory.mktemp("runs") / "gaps", studies)
    return folder


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[attr-defined]


def panel(figure: Figure, title: str) -> Axes:
    (found,) = [ax for ax in figure.axes if ax.get_title(loc="left") == title]
    return found


def intervals(ax: Axes, *, upright: bool = False) -> list[tuple[float, ...]]:
    """The bars on a panel: two ends in one place."""
    found = []
    for line in ax.lines:
        along, across = (
            np.asarray(data)
            for data in (line.get_ydata(), line.get_xdata())[:: 1 if upright else -1]
        )
        if (
            line.get_linestyle() == "-"
            and len(along) == 2
            and across[0] == across[1]
            and line.get_color() != "#E3E3E3"
        ):
            found.append(tuple(map(float, along)))
    return found


def marks(ax: Axes, *, upright: bool = False, **look: Any) -> list[float]:
    """The values of the single markers that look like this."""
    found = []
    for line in ax.lines:
        along = np.asarray(line.get_ydata() if upright else line.get_xdata())
        if len(along) == 1 and all(
            getattr(line, f"get_{name}")() == value for name, value in look.items()
        ):
            found.append(float(along[0]))
    return found


def said_on(ax: Axes) -> list[str]:
    """The reasons written over hatched rows."""
    return [text.get_text() for text in ax.texts if text.get_bbox_patch() is not None]


def hatches(ax: Axes) -> int:
    return sum(isinstance(patch, Rectangle) and bool(patch.get_hatch()) for patch in ax.patches)


def ends(interval: dict[str, float]) -> tuple[float, float]:
    return interval["low"], interval["high"]


def test_the_summary_shows_the_records_numbers_with_their_intervals(compared: Path) -> None:
    found = read(compared)
    with styled():
        figure = draw_variance(found)
    trace, snr = panel(figure, "Variance, tr Cov"), panel(figure, "Signal-to-noise")
    for row, record in enumerate(found.records):
        extended, colour = record["extended"], look_of(found, row)["color"]
        assert marks(trace, color=colour) == [extended["trace"]["value"]]
        assert marks(snr, color=colour) == [extended["snr"]["value"]]
        assert ends(extended["trace"]) in intervals(trace)
        assert ends(extended["snr"]) in intervals(snr)
        for ax, name in (
            (panel(figure, "|ESS|"), "ess_abs"),
            (panel(figure, "Top-1 share"), "top_share"),
        ):
            assert marks(ax, color=colour) == [extended["concentration"][name]]
    assert marks(panel(figure, "|ESS|"), color=GREY) == [6.0] * 3, "the rollouts there are"
    assert [label.get_text() for label in trace.get_yticklabels()] == ["plain", "loo", "again"]
    assert trace.get_xscale() == "log"
    assert 1.0 in [line.get_xdata()[0] for line in snr.lines if line.get_linestyle() == "--"]  # type: ignore[index]


def test_the_controls_stand_beside_the_snr(compared: Path) -> None:
    found = read(compared)
    with styled():
        figure = draw_variance(found)
    ax = panel(figure, "Signal-to-noise")
    for name, shape in (("shuffled_rewards", "d"), ("random_policy", "s")):
        controls = [record["extended"]["controls"][name]["snr"] for record in found.records]
        assert marks(ax, color=GREY, marker=shape) == [control["value"] for control in controls]
        assert {ends(control) for control in controls} <= set(intervals(ax))
    assert "SNR with shuffled rewards" in words(figure)
    assert "SNR with random policy" in words(figure)


def test_a_study_without_controls_has_none_in_its_legend(swept: Path) -> None:
    with styled():
        figure = draw_variance(read(swept))
    assert "shuffled" not in words(figure)
    assert not marks(panel(figure, "Signal-to-noise"), color=GREY)


def test_what_is_undefined_is_hatched_with_its_reason_and_never_a_number(gaps: Path) -> None:
    found = read(gaps)
    with styled():
        figure = draw_variance(found)
    for title in ("Variance, tr Cov", "Signal-to-noise"):
        ax = panel(figure, title)
        assert said_on(ax) == ["undefined: 1 replicate", "not measured"]
        assert hatches(ax) == 2
        for row in (1, 2):
            assert marks(ax, color=look_of(found, row)["color"]) == []
    for title in ("|ESS|", "Top-1 share"):
        assert said_on(panel(figure, title)) == ["not measured"], (
            "the concentration of one replicate is defined"
        )
        assert len(marks(panel(figure, title), color=look_of(found, 1)["color"])) == 1


def test_a_value_without_an_interval_is_half_filled_and_explained(gaps: Path) -> None:
    found = read(gaps)
    with styled():
        figure = draw_variance(found)
    ax = panel(figure, "Variance, tr Cov")
    assert marks(ax, fillstyle="left") == [found.records[3]["extended"]["trace"]["value"]]
    assert len(intervals(ax)) == 1
    assert "no interval: fewer than 4 units" in words(figure)


def test_sources_of_bias_are_said_once_with_whom_they_concern(gaps: Path) -> None:
    with styled():
        said = words(draw_variance(read(gaps)))
    assert said.count("the baseline contains the rollout's own reward") == 1
    assert "Biased (pomo, grpo):" in said


def test_every_replicate_is_a_point_beside_its_mean(gaps: Path) -> None:
    found = read(gaps)
    with styled():
        figure = draw_replicates(found)
    panels = (
        ("Gradient norm, noise included", "grad_norm"),
        ("Along one fixed N(0, I) direction", "grad_proj"),
    )
    for title, name in panels:
        ax = panel(figure, title)
        points = [list(line.get_xdata()) for line in ax.lines if line.get_alpha() == 0.75]  # type: ignore[arg-type]
        assert points == [record["per_replicate"][name] for record in found.records]
        assert marks(ax, marker="|") == [
            record["metrics"][f"{name}_mean"] for record in found.records
        ]
        several = [
            record["metrics"] for record in (found.records[0], found.records[2], found.records[3])
        ]
        bars = [
            (m[f"{name}_mean"] - m[f"{name}_std"], m[f"{name}_mean"] + m[f"{name}_std"])
            for m in several
        ]
        assert [bar for bar in intervals(ax) if bar != (0.0, 0.0)] == bars, (
            "one replicate has no deviation"
        )


def test_the_ratio_has_its_interval_a_line_at_one_and_the_sentences(compared: Path) -> None:
    found = read(compared)
    with gm.load(compared) as run:
        kept = run.table("comparison").content
    with styled():
        figure = draw_ratio(found)
    (ax,) = figure.axes
    ratios = [row["variance_ratio"] for row in kept["rows"]]
    assert [
        value for row in range(3) for value in marks(ax, color=look_of(found, row)["color"])
    ] == [value for value, _, _ in ratios]
    assert {(low, high) for _, low, high in ratios[1:]} <= set(intervals(ax))
    assert ratios[1][0] == pytest.approx(1.44), "rloo is pomo times n/(n−1), n=6"
    assert [
        line for line in ax.lines if line.get_linestyle() == "--" and line.get_xdata()[0] == 1.0
    ]  # type: ignore[index]
    for sentence in kept["sentences"]:
        assert sentence in words(figure)
    low, high = ratios[2][1:]
    assert low < 1 < high
    assert marks(ax, color=look_of(found, 2)["color"], markerfacecolor="white") == [ratios[2][0]]
    assert marks(ax, color=look_of(found, 1)["color"], markerfacecolor="white") == []
    assert "interval includes 1" in words(figure)


def test_ratios_that_are_no_numbers_say_why(tmp_path: Path) -> None:
    once = BANDITS.keep_comparison(
        tmp_path / "once", [BANDITS.study(a, num_replicates=1) for a in ("pomo", "rloo")]
    )
    still = BANDITS.keep_comparison(
        tmp_path / "still", [BANDITS.study(a, kind=BANDITS.Still) for a in ("pomo", "rloo")]
    )
    with styled():
        assert said_on(draw_ratio(read(once)).axes[0]) == ["undefined: 1 replicate"] * 2
        assert said_on(draw_ratio(read(still)).axes[0]) == ["NaN"] * 2
        summary = draw_variance(read(still))
    assert marks(panel(summary, "Variance, tr Cov"), color=look_of(read(still), 0)["color"]) == [
        0.0
    ], "measured as 0"
    assert said_on(panel(summary, "Signal-to-noise")) == ["NaN"] * 2, "signal over no noise"


def test_the_curve_draws_each_point_of_a_sweep_and_answers(swept: Path) -> None:
    """All studies of a sweep have one label: their series run into each other, their records do
    not."""
    found = read(swept)
    with gm.load(swept) as run:
        kept = run.table("curve").content
    with styled():
        figure = draw_curve(found)
    (ax,) = figure.axes
    many, two, eight = (value for value, _, _ in kept["snr"])
    values = [two, eight, many]
    assert len(set(values)) == 3
    assert marks(ax, upright=True, marker="o") == values
    assert {(low, high) for _, low, high in kept["snr"]} <= set(intervals(ax, upright=True))
    (line,) = [line for line in ax.lines if line.get_alpha() == 0.6]
    assert list(line.get_ydata()) == values, "from few to many"  # type: ignore[arg-type]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "8", "32"]
    assert kept["answer"] in words(figure).replace("\n", " ")
    assert [study.name for study in found.studies] == ["32 rollouts", "2 rollouts", "8 rollouts"]


def test_a_curve_over_k_leaves_a_gap_where_one_replicate_has_no_snr(tmp_path: Path) -> None:
    ks = (2, 3, 4)
    studies = [
        BANDITS.study(
            "maxk", options={"k": k, "baseline": "subloo"}, num_replicates=1 if k == 3 else 3
        )
        for k in ks
    ]
    with styled():
        figure = draw_curve(read(BANDITS.keep_curve(tmp_path / "ks", "k", ks, studies)))
    (ax,) = figure.axes
    assert said_on(ax) == ["undefined: 1 replicate"]
    assert len(marks(ax, upright=True, marker="o")) == 2
    (line,) = [line for line in ax.lines if line.get_alpha() == 0.6]
    assert [math.isnan(y) for y in line.get_ydata()] == [False, True, False]  # type: ignore[union-attr,arg-type]
    assert ax.get_xlabel() == "K"
    assert "SNR of maxk" in words(figure)


@pytest.mark.parametrize(
    ("kind", "third"),
    [
        ("png", "ratio"),
        ("svg", "curve"),
        ("pdf", "ratio"),
        *(
            pytest.param(*each, marks=pytest.mark.proof)
            for each in (("png", "curve"), ("svg", "ratio"), ("pdf", "curve"))
        ),
    ],
)
def test_the_files_are_those_the_run_has_something_for(
    kind: str, third: str, compared: Path, swept: Path, tmp_path: Path
) -> None:
    found = read({"ratio": compared, "curve": swept}[third])
    files = write_replicates(found, tmp_path, kind=kind)
    names = [f"variance_{name}.{kind}" for name in ("summary", "replicates", third)]
    assert [file.name for file in files] == [*names, RECORDS_NAME]
    assert {file.name for file in tmp_path.iterdir()} == {*names, RECORDS_NAME}
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind]
    assert all(file.read_bytes().startswith(start) for file in files[:3])


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_the_same_run_gives_the_same_bytes(kind: str, compared: Path) -> None:
    with styled():
        assert render(draw_ratio(read(compared)), kind) == render(draw_ratio(read(compared)), kind)


@pytest.mark.usefixtures("sketched")
def test_the_records_are_written_as_they_were_kept(gaps: Path, tmp_path: Path) -> None:
    found = read(gaps)
    *_, file = write_replicates(found, tmp_path)
    assert json.loads(file.read_text()) == json.loads(to_json(found.records))
    assert len(found.records) == 4


def test_a_run_without_replicates_has_no_studies(tmp_path: Path) -> None:
    with Writer(tmp_path / "plain") as writer:
        writer.put(Row(step=1, wall_time=0.0, values={"loss": 1.0}))
    with gm.load(tmp_path / "plain") as run:
        assert read_studies(run) is None


@pytest.mark.parametrize(
    "tables",
    [
        {"replicates": []},
        {"replicates": {"columns": ["a"], "data": [[1]]}},
        {"replicates": ["pomo"]},
        {"replicates": [{"config": {"label": "pomo"}}]},
        {"replicates": "kept", "comparison": {"rows": [], "sentences": []}},
        {
            "replicates": "kept",
            "curve": {"axis": "k", "values": [1, 2], "snr": [None], "answer": ""},
        },
    ],
)
def test_a_table_of_somebody_elses_is_an_error_that_says_so(
    tables: dict[str, Any], compared: Path, tmp_path: Path
) -> None:
    with Writer(tmp_path / "odd") as writer:
        for name, content in tables.items():
            writer.put(
                Table(
                    step=0,
                    name=name,
                    content=read(compared).records if content == "kept" else content,
                )
            )
    with (
        gm.load(tmp_path / "odd") as run,
        pytest.raises(UsageError, match="not what `gradiometer variance` keeps"),
    ):
        read_studies(run)


def test_the_same_estimator_twice_gets_two_names(tmp_path: Path) -> None:
    again = BANDITS.keep(
        tmp_path / "again", [BANDITS.study(extended=False, seed=s) for s in (1, 2)]
    )
    found = read(again)
    assert [study.name for study in found.studies] == ["pomo", "pomo (2)"]
    assert look_of(found, 0) != look_of(found, 1)


def test_forty_estimators_look_different(compared: Path) -> None:
    looks = [tuple(look_of(read(compared), row).values()) for row in range(40)]
    assert len(set(looks)) == 40


@pytest.mark.parametrize(
    ("drawn", "scale", "labels"),
    [
        ([9.0, 30.0], "log", ["10", "30"]),
        (
            [1e-3, 100.0],
            "log",
            ["$10^{-3}$", "$10^{-2}$", "$10^{-1}$", "$10^{0}$", "$10^{1}$", "$10^{2}$"][::2],
        ),
        ([0.9, 1.1], "log", ["0.7", "1", "1.5"]),
        ([-0.5, 0.5, 40.0], "function", ["−0.5", "0", "", "$10^{0}$", "$10^{1}$"]),
        ([0.0], "linear", None),
    ],
)
def test_a_log_axis_has_few_ticks_and_survives_what_has_no_logarithm(
    drawn: Sequence[float], scale: str, labels: list[str] | None
) -> None:
    with styled():
        ax = sheet(3, 2).subplots()
        assert log_scale(ax, list(drawn)) == scale
    low, high = ax.get_xlim()
    assert low <= min(drawn)
    assert max(drawn) <= high
    if labels is not None:
        assert [label.get_text() for label in ax.get_xticklabels()] == labels


def test_numbers_of_either_sign_and_of_many_decades_keep_their_order() -> None:
    with styled():
        ax = sheet(3, 2).subplots()
        assert signed_scale(ax, [[-10.0, 1.0], [0.04, -0.03], [math.nan]]) == "symlog"
        places = ax.transData.transform([(x, 0.0) for x in (-10.0, -0.03, 0.0, 0.04, 1.0)])[:, 0]
        assert (np.diff(places) > 20).all(), "the small ones are told apart from zero"
        ax = sheet(3, 2).subplots()
        assert signed_scale(ax, [[-3.0, 1.0], [0.4]]) == "linear"
        assert signed_scale(ax, [[]]) == "linear"


def test_numbers_are_written_as_in_a_paper() -> None:
    written = [
        typeset(number)
        for number in (0.0, 1.337e-5, 0.0312, 1.0, 1.44, 42.4, 517.0, -0.5, 2e4, math.inf)
    ]
    assert written == [
        "0",
        "$1.3\\times10^{-5}$",
        "0.031",
        "1",
        "1.4",
        "42",
        "517",
        "−0.5",
        "$2\\times10^{4}$",
        "inf",
    ]


def test_every_template_is_one_of_the_catalogue() -> None:
    assert {NORM, PROJECTION, TRACE, SNR, ESS, TOP_SHARE} <= gm.metrics.CATALOGUE.keys()


def test_drawing_needs_neither_torch_nor_pyplot(compared: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gradiometer.store.reader import load;from"
        " gradiometer.charts.studies import read_studies; from gradiometer.plots.files import"
        f" write_replicates;write_replicates(read_studies(load({str(compared)!r})),"
        f" Path({str(tmp_path)!r}));print(sorted({{'torch', 'matplotlib.pyplot'}} &"
        " set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr
    assert (tmp_path / "variance_ratio.png").exists()
