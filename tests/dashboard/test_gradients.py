"""The tab Gradients: the map of the layers, the curves of one, clipping, direction, noise and
histograms."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import Query
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.views.gradients import ROWS
from gradiometer.errors import UnknownName
from gradiometer.maths.histogram import EDGES, LABELS, log_histogram
from gradiometer.records import Row, Table, Vector
from gradiometer.store.reader import Run, load
from gradiometer.store.writer import Writer

FIXTURES = Path(__file__).parents[1] / "fixtures"
LAYERS = ("layer.embed", "layer.blocks.0", "layer.blocks.2", "layer.blocks.10", "layer.head")
ENDS = (
    "norm/raw",
    "norm/clipped",
    "norm/update",
    "max_abs",
    "zero_fraction",
    "update_ratio",
    "health",
    "cos_prev",
)


def value(place: int, step: int) -> float:
    return 1.0 + place + step / 100


def write(
    folder: Path,
    *,
    steps: int = 8,
    drop: tuple[str, ...] = (),
    more: Callable[[Writer], None] | None = None,
) -> None:
    """A run of five layers and two blocks, whose parameters are in the order of LAYERS."""
    with Writer(folder, facts={"started": folder.name, "meter": {"tier": "standard"}}) as writer:
        content = {
            f"{layer.removeprefix('layer.')}.{kind}": "finite"
            for layer in LAYERS
            for kind in ("weight", "bias")
        }
        writer.put(Table(step=0, name="states", content=content))
        blocks = ("all", "actor", "critic", *LAYERS)
        for step in range(steps):
            values = {
                f"grad/{block}/{end}": value(10 * i + j, step)
                for i, block in enumerate(blocks)
                for j, end in enumerate(ENDS)
                if end not in drop and block not in drop
            }
            clips = {
                f"grad/all/clip/{end}": 0.5
                for end in ("threshold", "ratio", "rate", "intensity", "active")
            }
            writer.put(
                Row(
                    step=step,
                    wall_time=float(step),
                    values=values | ({} if "clip" in drop else clips),
                )
            )
        if more is not None:
            more(writer)


def seen(root: Path, *runs: str, after: str = "", **options: str) -> dict[str, Any]:
    index = RunIndex(root)
    query = Query(
        runs=runs, after=after, options={name: (value,) for name, value in options.items()}
    )
    told: dict[str, Any] = json.loads(encode(answer(index, Diagnoses(index), "gradients", query)))
    return told


def charts(view: dict[str, Any]) -> dict[str, Any]:
    assert len({chart["id"] for chart in view["charts"]}) == len(view["charts"]), (
        "an id names one chart"
    )
    return {chart["id"]: chart for chart in view["charts"]}


def controls(view: dict[str, Any]) -> dict[str, Any]:
    return {control["name"]: control for control in view["controls"]}


@pytest.mark.parametrize(
    ("quantity", "end", "reduce", "colours", "scale"),
    [
        ("norm", "norm/raw", "max", "sequential", "log"),
        ("health", "health", "min", "health", "linear"),
        ("zero", "zero_fraction", "max", "sequential", "linear"),
        ("update", "update_ratio", "max", "sequential", "log"),
    ],
)
def test_the_map_has_the_layers_in_the_order_of_the_model(
    tmp_path: Path, quantity: str, end: str, reduce: str, colours: str, scale: str
) -> None:
    write(tmp_path / "r")
    shown = charts(seen(tmp_path, "r", quantity=quantity))["layers"]
    assert [line["key"] for line in shown["lines"]] == list(LAYERS)
    assert [line["label"] for line in shown["lines"]] == [
        "embed",
        "blocks.0",
        "blocks.2",
        "blocks.10",
        "head",
    ]
    assert (shown["kind"], shown["pick"], shown["reduce"]) == ("map", "layer", reduce)
    assert (shown["colours"], shown["y"]["scale"]) == (colours, scale)
    with load(tmp_path / "r") as run:
        for line in shown["lines"]:
            assert line["name"] == f"grad/{line['key']}/{end}"
            assert line["points"]["values"] == run.series(line["name"])[1].tolist()


def test_without_a_table_of_states_layers_sort_as_numbers(tmp_path: Path) -> None:
    with Writer(tmp_path / "r") as writer:
        writer.put(
            Row(
                step=0,
                wall_time=0.0,
                values={f"grad/layer.{n}/norm/raw": 1.0 for n in ("10", "9", "2.b", "2.a")},
            )
        )
    rows = charts(seen(tmp_path, "r"))["layers"]["lines"]
    assert [line["label"] for line in rows] == ["2.a", "2.b", "9", "10"]


def test_a_run_without_layers_has_its_named_blocks_in_the_map(tmp_path: Path) -> None:
    write(tmp_path / "r", drop=LAYERS)
    assert [line["key"] for line in charts(seen(tmp_path, "r"))["layers"]["lines"]] == [
        "actor",
        "critic",
    ]


def test_a_spike_is_in_the_map_however_long_the_run(tmp_path: Path) -> None:
    with Writer(tmp_path / "r") as writer:
        for step in range(2_000):
            spike = {777: 1e6, 1_300: math.nan}.get(step, 1.0)
            writer.put(
                Row(step=step, wall_time=float(step), values={"grad/layer.a/norm/raw": spike})
            )
    (row,) = charts(seen(tmp_path, "r"))["layers"]["lines"]
    assert len(row["points"]["steps"]) <= 300
    assert max(row["points"]["high"]) == 1e6
    (broken,) = row["points"]["nans"]
    assert 1_300 <= broken < 1_310


def test_only_quantities_that_the_run_has_are_offered(tmp_path: Path) -> None:
    write(tmp_path / "r", drop=("health", "update_ratio"))
    found = controls(seen(tmp_path, "r"))
    assert [option["value"] for option in found["quantity"]["options"]] == ["norm", "zero"]
    assert found["quantity"]["value"] == "norm"
    assert [option["value"] for option in found["layer"]["options"]] == [
        "",
        "actor",
        "critic",
        *LAYERS,
    ]


def test_a_quantity_the_run_has_not_is_explained_and_one_nobody_has_is_an_error(
    tmp_path: Path,
) -> None:
    write(tmp_path / "r", drop=("health",))
    shown = charts(seen(tmp_path, "r", quantity="health"))["layers"]
    assert shown["lines"] == []
    assert shown["empty"]["title"] == "No health by layer yet"
    with pytest.raises(UnknownName, match="norm, health, zero, update"):
        seen(tmp_path, "r", quantity="helth")


def test_the_curves_are_of_the_chosen_layer(tmp_path: Path) -> None:
    write(tmp_path / "r")
    view = seen(tmp_path, "r", layer="layer.blocks.10")
    assert controls(view)["layer"]["value"] == "layer.blocks.10"
    of_it = [chart for chart in view["charts"] if chart["section"].startswith("blocks.10")]
    names = [line["name"] for chart in of_it for line in chart["lines"]]
    assert sorted(names) == sorted(f"grad/layer.blocks.10/{end}" for end in ENDS)
    assert [line["role"] for line in charts(view)["norms"]["lines"]] == ["raw", "clipped", "update"]
    with load(tmp_path / "r") as run:
        for chart in of_it:
            for line in chart["lines"]:
                assert line["points"]["values"] == run.series(line["name"])[1].tolist()


def test_unless_one_is_chosen_they_are_of_the_whole_model(tmp_path: Path) -> None:
    write(tmp_path / "r")
    for layer in ("", "all"):
        view = seen(tmp_path, "r", layer=layer)
        assert controls(view)["layer"]["value"] == ""
        assert [line["name"] for line in charts(view)["norms"]["lines"]] == [
            f"grad/all/norm/{stage}" for stage in ("raw", "clipped", "update")
        ]


def test_an_unknown_layer_is_an_error_that_says_what_is_close(tmp_path: Path) -> None:
    write(tmp_path / "r")
    with pytest.raises(UnknownName, match=r"did you mean 'layer\.blocks\.2'"):
        seen(tmp_path, "r", layer="layer.block.2")


def test_a_layer_of_another_shown_run_may_be_chosen(tmp_path: Path) -> None:
    write(tmp_path / "a", drop=("layer.head",))
    write(tmp_path / "b")
    view = seen(tmp_path, "a", "b", layer="layer.head")
    assert {line["run"] for line in charts(view)["norms"]["lines"]} == {"b"}
    assert "layer.head" in [option["value"] for option in controls(view)["layer"]["options"]]


def test_blocks_stand_side_by_side_at_each_stage(tmp_path: Path) -> None:
    write(tmp_path / "r")
    found = charts(seen(tmp_path, "r"))
    for stage in ("raw", "clipped", "update"):
        drawn = [(line["name"], line["role"]) for line in found[f"blocks-{stage}"]["lines"]]
        assert drawn == [
            (f"grad/all/norm/{stage}", "whole"),
            (f"grad/actor/norm/{stage}", "block:actor"),
            (f"grad/critic/norm/{stage}", "block:critic"),
        ]


def test_several_runs_overlay_and_the_map_is_of_the_focus(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name)
    found = charts(seen(tmp_path, "b", "a"))
    assert {line["run"] for line in found["layers"]["lines"]} == {"b"}
    assert found["layers"]["subtitle"] == "b"
    assert [(line["run"], line["name"]) for line in found["cos_prev"]["lines"]] == [
        ("b", "grad/all/cos_prev"),
        ("a", "grad/all/cos_prev"),
    ]
    assert [line["label"] for line in found["clip-rate"]["lines"]] == ["b", "a"]


def test_of_many_runs_the_main_curves_are_drawn_of_every_one(tmp_path: Path) -> None:
    runs = "abcdef"
    for name in runs:
        write(tmp_path / name)
    view = seen(tmp_path, *runs)
    assert "6 runs" in view["header"][0]
    found = charts(view)
    for id in ("norms", "detail-update_ratio", "detail-health", "clip-rate", "cos_prev"):
        assert [line["run"] for line in found[id]["lines"]] == list(runs)
    assert {line["run"] for line in found["blocks-raw"]["lines"]} == set("abcd")


def test_clips_show_the_threshold_beside_the_raw_norm(tmp_path: Path) -> None:
    write(tmp_path / "r")
    found = charts(seen(tmp_path, "r"))
    assert [line["name"] for line in found["clip-threshold"]["lines"]] == [
        "grad/all/norm/raw",
        "grad/all/clip/threshold",
    ]
    assert {"clip-ratio", "clip-rate", "clip-intensity"} <= set(found)


def test_a_run_that_never_clips_is_told_what_would_be_seen(tmp_path: Path) -> None:
    write(tmp_path / "r", drop=("clip",))
    empty = charts(seen(tmp_path, "r"))["clip-threshold"]["empty"]
    assert empty["title"] == "No clipping was detected"
    assert "clip_grad_norm_" in empty["code"]


def test_direction_stands_beside_what_noise_alone_reads(tmp_path: Path) -> None:
    ends = (
        "cos_prev",
        "cos_noise",
        "cos_ema",
        "cos_update",
        "alignment",
        "alignment_window",
        "sign_agreement",
    )
    with Writer(tmp_path / "r") as writer:
        for step in range(3):
            values = {f"grad/all/{end}": 0.1 for end in ends} | {"meter/micro_batches": 4.0}
            writer.put(Row(step=step, wall_time=0.0, values=values))
    found = charts(seen(tmp_path, "r"))
    levels = {
        end: [level["value"] for level in found[end]["levels"]]
        for end in ends
        if end != "cos_noise"
    }
    assert levels == {
        "cos_prev": [0.0],
        "cos_ema": [0.0],
        "cos_update": [0.0],
        "alignment": [0.5],
        "alignment_window": [0.35],
        "sign_agreement": [0.5],
    }
    assert [(line["name"], line["role"]) for line in found["cos_prev"]["lines"]] == [
        ("grad/all/cos_prev", ""),
        ("grad/all/cos_noise", "null"),
    ]


def test_noise_drift_and_period_are_drawn_where_they_are(tmp_path: Path) -> None:
    values = {
        f"grad/all/{end}": 2.0
        for end in ("noise_scale", "noise_scale_bound", "drift", "drift_p", "period")
    }
    with Writer(tmp_path / "r") as writer:
        writer.put(Row(step=0, wall_time=0.0, values=values | {"meter/noise_batch": 8.0}))
    found = charts(seen(tmp_path, "r"))
    for name in values:
        assert found[name.rpartition("/")[2]]["lines"][0]["name"] == name
    assert found["noise_scale"]["lines"][1]["name"] == "meter/noise_batch"
    write(tmp_path / "s")
    assert "micro_batch_size=" in charts(seen(tmp_path, "s"))["noise_scale"]["empty"]["code"]


def test_histograms_over_time_are_shares_of_the_kept_counts(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    kept = {}
    for step in range(0, 300, 10):
        gradient = torch.randn(1000, generator=generator) * 10 ** (-step / 100)
        gradient[:250] = 0
        gradient[250] = math.nan if step == 290 else 1.0
        kept[step] = log_histogram(gradient).numpy()

    def more(writer: Writer) -> None:
        for step, counts in kept.items():
            writer.put(Vector(step=step, name="histogram/all", values=counts))
            writer.put(Vector(step=step, name="histogram/actor", values=counts))

    write(tmp_path / "r", more=more)
    chart = charts(seen(tmp_path, "r"))["histogram"]
    matrix = chart["matrix"]
    assert matrix["columns"] == list(kept)
    assert [matrix["rows"][0], *matrix["rows"][-2:]] == ["exactly zero", "NaN", "Inf"]
    cells = np.array(matrix["cells"])
    np.testing.assert_allclose(cells.sum(axis=0), 1, atol=1e-3)
    assert set(matrix["cells"][0]) == {0.25}
    assert [cell for cell in matrix["cells"][-2] if cell] == [0.001]
    for row, label in enumerate(matrix["rows"]):
        counts = [int(counts[ROWS.index(label)]) for counts in kept.values()]
        np.testing.assert_allclose(cells[row], np.array(counts) / 1000, atol=1e-12)
    assert "choose actor above" in chart["subtitle"]
    assert "· actor" in charts(seen(tmp_path, "r", layer="actor"))["histogram"]["title"]
    assert "Whole model" in charts(seen(tmp_path, "r", layer="layer.head"))["histogram"]["title"]


def test_the_rows_of_a_histogram_are_the_bins_that_are_counted() -> None:
    assert len(ROWS) == len(LABELS) == 37
    for low, label in zip(EDGES, ROWS[2:-2], strict=True):
        if label != "above 4":
            assert float(label.split(" … ")[0]) == pytest.approx(math.log10(low), abs=0.01)


def test_of_many_kept_histograms_even_ones_and_the_last_are_shown(tmp_path: Path) -> None:
    def more(writer: Writer) -> None:
        for step in range(1_000):
            writer.put(Vector(step=step, name="histogram/all", values=np.ones(37, dtype=np.int64)))

    write(tmp_path / "r", more=more)
    columns = charts(seen(tmp_path, "r"))["histogram"]["matrix"]["columns"]
    assert len(columns) <= 121
    assert (columns[0], columns[-1]) == (0, 999)
    assert len(set(np.diff(columns)[:-1].tolist())) == 1


def test_a_run_without_histograms_is_told_the_tier(tmp_path: Path) -> None:
    write(tmp_path / "r")
    assert 'tier="deep"' in charts(seen(tmp_path, "r"))["histogram"]["empty"]["code"]


def test_a_log_with_a_gradient_norm_shows_it_and_says_what_the_meter_would_add(
    tmp_path: Path,
) -> None:
    shutil.copytree(FIXTURES / "trl_grpo" / "checkpoint-30", tmp_path / "trl")
    found = charts(seen(tmp_path, "trl"))
    assert set(found) == {"layers", "norms"}
    assert [line["name"] for line in found["norms"]["lines"]] == ["grad_norm"]
    assert "callbacks=[GradiometerCallback(" in found["layers"]["empty"]["code"]


def test_a_log_without_gradients_is_one_empty_view() -> None:
    view = seen(FIXTURES, "sb3_ppo")
    assert view["charts"] == view["controls"] == []
    assert view["empty"]["title"] == "No gradients"


def test_every_chart_says_what_it_shows(tmp_path: Path) -> None:
    write(tmp_path / "r")
    for chart in seen(tmp_path, "r", layer="actor")["charts"]:
        assert chart["info"], chart["id"]
        assert chart["title"]
        assert chart["section"]


def test_a_series_in_two_charts_is_read_once_and_ticks_in_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    thinned = Run.thinned

    def counted(run: Run, name: str, *given: Any) -> Any:
        reads.append(name)
        return thinned(run, name, *given)

    monkeypatch.setattr(Run, "thinned", counted)
    with Writer(tmp_path / "r", facts={"started": "then"}) as writer:

        def put(step: int) -> None:
            values = {
                f"grad/{block}/norm/raw": float(step) for block in ("all", "actor", "layer.a")
            }
            writer.put(Row(step=step, wall_time=float(step), values=values))

        for step in range(5):
            put(step)
        writer.flush()
        whole = seen(tmp_path, "r")
        assert sorted(reads) == [
            "grad/actor/norm/raw",
            "grad/all/norm/raw",
            "grad/layer.a/norm/raw",
        ]
        put(5)
        writer.flush()
        tick = seen(tmp_path, "r", after=whole["cursor"])
    assert tick["delta"]
    of_all = [
        line
        for chart in tick["charts"]
        for line in chart["lines"]
        if line["name"] == "grad/all/norm/raw"
    ]
    assert len(of_all) >= 2
    assert all(
        line["points"]["steps"] == [5] and line["points"]["values"] == [5.0] for line in of_all
    )
