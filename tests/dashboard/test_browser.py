"""The dashboard as its users have it: real trainings, a real server, a real Chromium, and the
numbers of the database."""

from __future__ import annotations

import csv
import io
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from forkserver import python

from gradiometer.dashboard.views import VIEWS
from gradiometer.store.reader import load

pytestmark = pytest.mark.slow

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def home(lab_runs: Path, serving: Callable[..., Any]) -> Iterator[str]:
    with serving(lab_runs) as address:
        yield address


def show(page: Any, chart: str) -> None:
    """Charts are drawn when they come into view."""
    unfold(page, chart)
    page.locator(f'[data-chart="{chart}"]').scroll_into_view_if_needed()
    page.wait_for_selector(f'[data-chart="{chart}"] .chart-plot[data-drawn]', timeout=60_000)


def drawn(page: Any, chart: str) -> list[dict[str, Any]]:
    """What Plotly holds of a chart: name, x, y, z of every trace that answers to the mouse."""
    show(page, chart)
    found: list[dict[str, Any]] = page.evaluate(
        """id => document.querySelector(`[data-chart="${id}"] .chart-plot`).data
             .filter(trace => trace.hoverinfo !== 'skip')
             .map(({name, x, y, z, type}) => ({name, type, x: x && [...x], y: y && [...y], z: z && z.map(row => [...row])}))""",
        chart,
    )
    return found


def unfold(page: Any, chart: str) -> None:
    """Open the section that a chart is in."""
    page.evaluate(
        """id => { const fold = document.querySelector(`[data-chart="${id}"]`)?.closest("details");
                   if (fold) fold.open = true; }""",
        chart,
    )


def test_a_folded_section_is_asked_for_when_it_is_opened_and_the_address_keeps_it(
    home: str, browse: Open
) -> None:
    page = browse(f"{home}/gradients?run=healthy")
    drawn_there = '[data-chart="clip-threshold"] .chart-plot[data-drawn]'
    assert not any("open=Clipping" in url for url in page.asked)
    page.locator("details[aria-label=Clipping] summary").click()
    page.wait_for_selector(drawn_there, timeout=60_000)
    assert any("open=Clipping" in url for url in page.asked)
    assert "open=Clipping" in page.url
    page.reload()
    page.wait_for_selector("details[aria-label=Clipping][open]", timeout=60_000)
    page.locator('[data-chart="clip-threshold"]').scroll_into_view_if_needed()
    page.wait_for_selector(drawn_there, timeout=60_000)


def charts_of(page: Any) -> list[str]:
    names: list[str] = page.eval_on_selector_all(
        "[data-chart]", "all => all.map(one => one.dataset.chart)"
    )
    return names


def close(drawn_values: list[Any], wanted: Any) -> bool:
    got = np.array(
        [math.nan if value is None else value for value in drawn_values], dtype=np.float64
    )
    return len(got) == len(wanted) and bool(
        np.allclose(got, np.asarray(wanted), rtol=1e-9, equal_nan=True)
    )


# The two that stay fill every tab between them.
@pytest.mark.parametrize(
    "run",
    [
        "experts",
        "estimators",
        *(pytest.param(run, marks=pytest.mark.proof) for run in ("healthy", "broken", "analysed")),
    ],
)
def test_every_tab_of_every_lab_opens_and_draws_what_it_has(
    home: str, browse: Open, run: str
) -> None:
    page = browse(f"{home}/overview?run={run}")
    for tab in VIEWS:
        page.click(f"[data-tab={tab}]")
        page.wait_for_selector(f"html[data-ready={tab}]", timeout=60_000)
        assert page.locator(".problem").count() == 0
        for chart in charts_of(page)[:3]:
            unfold(page, chart)
            page.locator(f'[data-chart="{chart}"]').scroll_into_view_if_needed()
            page.wait_for_selector(
                f'[data-chart="{chart}"] :is(.chart-plot[data-drawn], table, .drawing svg, .empty)',
                timeout=60_000,
            )
        assert charts_of(page) or page.locator(".empty").count()


def test_the_overview_says_the_dead_term_first_and_draws_the_rewards_of_the_database(
    home: str, browse: Open, lab_runs: Path
) -> None:
    page = browse(f"{home}/overview?run=broken&run=healthy")
    page.wait_for_selector(".verdict[data-severity=critical]")
    assert "entropy" in page.text_content(".verdict[data-severity=critical]")
    traces = {trace["name"]: trace for trace in drawn(page, "reward")}
    for name in ("broken", "healthy"):
        with load(lab_runs / name) as run:
            steps, values = run.series("reward")
        mine = next(trace for label, trace in traces.items() if name in label)
        assert mine["x"] == steps.tolist()
        assert close(mine["y"], values)


def test_the_map_of_layers_holds_the_norms_of_the_database(
    home: str, browse: Open, lab_runs: Path
) -> None:
    page = browse(f"{home}/gradients?run=healthy")
    name = next(
        chart
        for chart in charts_of(page)
        if page.locator(f'[data-chart="{chart}"][data-kind=map]').count()
    )
    (heat,) = (trace for trace in drawn(page, name) if trace["type"] == "heatmap")
    with load(lab_runs / "healthy") as run:
        layers = {
            series.split("/")[1]: run.series(series)[1]
            for series in run.names()
            if series.startswith("grad/layer.") and series.endswith("/norm/raw")
        }
    assert len(heat["z"]) == len(layers)
    rows = sorted(
        tuple(np.round([value for value in row if value is not None], 6)) for row in heat["z"]
    )
    wanted = sorted(tuple(np.round(np.log10(values), 6)) for values in layers.values())
    np.testing.assert_allclose(np.array(rows, dtype=float), np.array(wanted), atol=2e-6)


def test_a_click_on_a_layer_shows_its_curves(home: str, browse: Open) -> None:
    page = browse(f"{home}/gradients?run=healthy")
    name = next(
        chart
        for chart in charts_of(page)
        if page.locator(f'[data-chart="{chart}"][data-kind=map]').count()
    )
    show(page, name)
    box = page.locator(f'[data-chart="{name}"] .chart-plot .nsewdrag').first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.2)
    page.wait_for_timeout(200)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.2)
    page.wait_for_url("**layer=**")
    page.wait_for_selector("html[data-ready=gradients]")


def test_experts_are_drawn_in_the_colours_of_the_source(
    home: str, browse: Open, lab_runs: Path
) -> None:
    page = browse(f"{home}/dynamics?run=experts")
    name = next(chart for chart in charts_of(page) if chart.startswith("tiers"))
    show(page, name)
    lines = page.evaluate(
        """id => document.querySelector(`[data-chart="${id}"] .chart-plot`).data.filter(t => t.hoverinfo !== 'skip' && t.line)
             .map(t => ({name: t.name, colour: t.line.color, y: [...t.y]}))""",
        name,
    )
    with load(lab_runs / "experts") as run:
        for tier in ("top", "bottom", "middle"):
            for expert in ("0", "1"):
                _, values = run.series(f"grad/expert/{expert}/{tier}_norm")
                line = next(each for each in lines if close(each["y"], values))
                red, _, blue = (
                    int(line["colour"].lstrip("#")[place : place + 2], 16) for place in (0, 2, 4)
                )
                assert (blue > red) == (expert == "0"), line
    kind = page.evaluate(
        "id => document.querySelector(`[data-chart='${id}'] .chart-plot`).layout.yaxis.type", name
    )
    assert kind == "log"
    header = page.text_content("main")
    assert "divergence" in header.lower()
    assert page.locator(".answer").count() >= 3


def test_terms_and_estimators_draw_their_tables(home: str, browse: Open, lab_runs: Path) -> None:
    page = browse(f"{home}/terms?run=analysed")
    kinds = page.eval_on_selector_all("[data-chart]", "all => all.map(one => one.dataset.kind)")
    assert {"bars", "matrix"} <= set(kinds)
    slider = page.locator("[data-control=step] input[type=range]")
    assert slider.count() == 1
    with load(lab_runs / "analysed") as run:
        norms = {
            name: run.series(name) for name in run.names() if name.startswith("grad_norm/all/")
        }
    values = {round(float(series[1][-1]), 9) for series in norms.values()}
    bars = [
        chart
        for chart in charts_of(page)
        if page.locator(f'[data-chart="{chart}"][data-kind=bars]').count()
    ]
    seen = {
        round(value, 9)
        for chart in bars
        for trace in drawn(page, chart)
        for value in trace["y"]
        if value is not None
    }
    assert len(values & seen) >= 2
    page = browse(f"{home}/estimators?run=estimators")
    assert "variance" in page.text_content("main").lower()
    assert len(charts_of(page)) >= 4


def test_findings_show_their_evidence_at_the_right_steps(home: str, browse: Open) -> None:
    page = browse(f"{home}/findings?run=broken")
    page.wait_for_selector("[data-finding]")
    card = page.text_content("[data-finding] >> nth=0")
    assert "entropy" in card
    assert "no_grad" in card
    page.select_option("#control-severity", "critical")
    page.wait_for_url("**severity=critical**")
    page.wait_for_selector("html[data-ready=findings]")
    severities = page.eval_on_selector_all(
        "[data-finding]", "all => all.map(one => one.dataset.severity)"
    )
    assert set(severities) == {"critical"}


def test_compare_draws_each_run_and_names_what_differs(
    home: str, browse: Open, lab_runs: Path
) -> None:
    page = browse(f"{home}/compare?run=broken&run=healthy&metric=entropy&group=none")
    name = next(chart for chart in charts_of(page) if "entropy" in chart)
    traces = drawn(page, name)
    for run_name in ("broken", "healthy"):
        with load(lab_runs / run_name) as run:
            _, values = run.series("entropy")
        assert any(close(trace["y"], values) for trace in traces)
    assert "entropy_no_grad" in page.text_content("main")


def test_a_chart_is_saved_as_its_numbers_and_as_a_picture(
    home: str, browse: Open, lab_runs: Path
) -> None:
    page = browse(f"{home}/overview?run=healthy")
    show(page, "reward")
    with page.expect_download() as saved:
        page.locator('[data-chart="reward"] button[title*="CSV"]').click()
    rows = list(csv.reader(io.StringIO(Path(saved.value.path()).read_text())))
    with load(lab_runs / "healthy") as run:
        steps, values = run.series("reward")
    head = rows[0]
    assert len(rows) == len(steps) + 1
    at, of = (
        head.index("step"),
        next(place for place, cell in enumerate(head) if "reward" in cell or cell == "value"),
    )
    assert [int(row[at]) for row in rows[1:]] == steps.tolist()
    assert close([float(row[of]) for row in rows[1:]], values)
    with page.expect_download() as saved:
        page.locator('[data-chart="reward"] button[title*="PNG"]').click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


def shown_range(page: Any, chart: str) -> list[float]:
    show(page, chart)
    ends = page.evaluate(
        "id => document.querySelector(`[data-chart='${id}'] .chart-plot`).layout.xaxis.range", chart
    )
    return [float(end) for end in ends]


def test_a_zoom_is_in_the_link_and_in_every_chart(home: str, browse: Open) -> None:
    page = browse(f"{home}/overview?run=healthy")
    show(page, "reward")
    box = page.locator('[data-chart="reward"] .chart-plot .nsewdrag').first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    page.wait_for_url("**from=**")
    page.wait_for_selector("html[data-ready=overview]")
    ranges = [shown_range(page, chart) for chart in ("reward", "entropy")]
    again = browse(page.url)
    ranges += [shown_range(again, chart) for chart in ("reward", "entropy")]
    assert all(np.allclose(each, ranges[0], rtol=1e-6) for each in ranges)
    assert "from=" in again.url
    assert "to=" in again.url


def test_dark_is_dark_and_narrow_does_not_scroll_sideways(home: str, browse: Open) -> None:
    dark = browse(f"{home}/overview?run=healthy&theme=dark")
    back = dark.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(int(part) for part in re.findall(r"\d+", back)[:3]) < 150
    page = browse(f"{home}/?run=experts&run=broken", size=(390, 844))
    for tab in VIEWS:
        page.click(f"[data-tab={tab}]")
        page.wait_for_selector(f"html[data-ready={tab}]", timeout=60_000)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, tab


def test_what_is_not_there_is_explained(home: str, browse: Open) -> None:
    page = browse(f"{home}/dynamics?run=healthy")
    assert "experts" in page.text_content(".empty").lower()
    assert "gm.watch" in page.text_content(".empty code, .empty pre")
    page = browse(f"{home}/estimators?run=healthy")
    assert "gradiometer variance" in page.text_content(".empty")


def test_a_long_run_shows_its_spike(tmp_path: Path, serving: Any, browse: Open) -> None:
    from gradiometer.records import Row
    from gradiometer.store.writer import Writer

    with Writer(tmp_path / "long") as writer:
        for step in range(20_000):
            writer.put(
                Row(
                    step=step,
                    wall_time=float(step),
                    values={"reward": 500.0 if step == 11_234 else step % 5 / 5},
                )
            )
            if step % 5_000 == 0:
                writer.flush()
    with serving(tmp_path) as address:
        page = browse(f"{address}/overview?run=long")
        show(page, "reward")
        highest = page.evaluate(
            """() => Math.max(...document.querySelector('[data-chart="reward"] .chart-plot').data.flatMap(t => [...t.y])
                 .filter(Number.isFinite))"""
        )
        page.leave()
    assert highest == 500.0


def measured(run: Path) -> bool:
    """Whether a training has left a gradient in its run."""
    if not (run / "run.db").exists():
        return False
    with load(run) as opened:
        return "grad/all/norm/raw" in opened.names()


TRAIN = """
import os, signal, sys, threading, time
from gradiometer.cli.main import run

def stop():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=stop, daemon=True).start()
sys.exit(run(sys.argv[2:]))
"""


@contextmanager
def training(run: Path) -> Iterator[Callable[[], None]]:
    """A training in a process of its own that goes on until it is interrupted by what we yield."""
    enough = run.parent / "enough"
    words = ["train", "cartpole", f"run={run}", "total_steps=1000000"]
    thread = threading.Thread(target=python, args=("-c", TRAIN, enough, *words))

    def interrupt() -> None:
        enough.touch()
        thread.join(60)
        assert not thread.is_alive()

    thread.start()
    try:
        yield interrupt
    finally:
        interrupt()


def test_a_page_follows_a_training_while_it_runs(
    tmp_path: Path, serving: Any, browse: Open
) -> None:
    """Only new points travel, and what is drawn at the end is what the database has."""
    answers: list[dict[str, Any]] = []

    def keep(told: Any) -> None:
        if "after=" in told.url:
            answers.append(told.json())

    with training(tmp_path / "run") as interrupt:
        until = time.monotonic() + 60
        while not measured(tmp_path / "run"):
            assert time.monotonic() < until
            time.sleep(0.05)
        with serving(tmp_path, quick=True) as address:
            page = browse(f"{address}/overview?run={quote('run')}")
            page.on("response", keep)
            chart = "grad-norm" if "grad-norm" in charts_of(page) else charts_of(page)[0]
            counts = [len(drawn(page, chart)[0]["y"])]
            until = time.monotonic() + 60
            while len(set(counts)) < 4 and time.monotonic() < until:
                page.wait_for_timeout(50)
                counts.append(len(drawn(page, chart)[0]["y"]))
            interrupt()
            page.wait_for_timeout(500)  # the page hears of the last points
            final = drawn(page, chart)[0]["y"]
            deltas = [told for told in answers if told["delta"]]
            live = [
                line["name"] for told in deltas for each in told["charts"] for line in each["lines"]
            ]
            page.remove_listener("response", keep)
            page.leave()
    assert len(set(counts)) >= 3, counts
    assert live, "no delta had a line"
    with load(tmp_path / "run") as run:
        assert set(live) <= set(run.names())
        longest = max(len(run.series(each)[0]) for each in run.names())
    assert len(final) <= longest
    assert len(final) >= counts[-1] > counts[0]
