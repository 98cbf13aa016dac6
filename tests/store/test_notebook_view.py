"""What a notebook shows of a run: drawn from its values, and harmless."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import gradiometer as gm
from gradiometer.records import Row
from gradiometer.store.notebook_view import sparkline
from gradiometer.store.writer import Writer


def test_a_run_and_a_log_show_their_usual_series_with_a_curve(tmp_path: Path) -> None:
    folder = tmp_path / "<b>run"
    with Writer(folder) as writer:
        for step in range(300):
            values = {"reward": float(step), "grad/all/norm/raw": 2.0, "other": 1.0}
            writer.put(Row(step=step, wall_time=float(step), values=values))
    csv = tmp_path / "log.csv"
    csv.write_text("step,reward\n" + "\n".join(f"{n},{n * n}" for n in range(50)) + "\n")
    with gm.load(folder) as run:
        shown = run._repr_html_()
    assert "&lt;b&gt;run" in shown
    assert "up to step 299" in shown
    assert re.findall("<tr><td>([^<]+)", shown) == ["reward", "grad/all/norm/raw"]
    assert "<td>299</td>" in shown
    assert gm.load(csv)._repr_html_().count("<polyline") == 1


def test_a_curve_ends_high_where_values_do_and_leaves_out_what_is_not_finite() -> None:
    drawn = sparkline(np.array([0.0, np.nan, 1.0, np.inf, 2.0]))
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[\d.]+,[\d.]+", drawn)]
    assert [x for x, _ in points] == [2.0, 80.0, 158.0]
    assert [y for _, y in points] == [26.0, 14.0, 2.0]
    assert sparkline(np.array([np.nan, 1.0])) == ""
    assert "14.0 158.0,14.0" in sparkline(np.full(2, 3.0))
