"""The charts of the page in a real browser: what is drawn is what was given."""

from __future__ import annotations

import csv
import http.server
import io
import json
import math
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly
import pytest
from playwright.sync_api import ConsoleMessage, Error, Page

import gradiometer.dashboard
from gradiometer.plots.experts import CLEAN, WARM

pytestmark = pytest.mark.slow

STATIC = Path(gradiometer.dashboard.__file__).parent / "static"
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'"
)
PAGE = (
    b'<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
    b'<script src="/plotly.min.js"></script><div id="root"></div>'
)
LOOK = {"smooth": 0, "raw": True, "envelope": True, "y": "auto", "logx": False, "x": "step"}
HELPERS = """async () => {
  const charts = await import('/static/charts/index.js');
  Object.assign(window, { told: [], handles: {} });
  window.put = async (chart, { look, theme = 'light', runs, width = 700 }) => {
    const box = document.createElement('div');
    box.style.width = width + 'px';
    root.replaceChildren(box);
    document.body.style.margin = '0';
    const tell = (name) => (...all) => { told.push([name, ...all]); };
    window.context = { runs: new Map(runs.map((run) => [run.id, run])), many: true, theme, look,
      onHover: tell('hover'), onZoom: tell('zoom'), onPick: tell('pick'), onLegend: tell('legend') };
    window.handle = charts.mount(box, chart, context);
    await handle.drawn;
    window.gd = document.querySelector('.js-plotly-plot');
  };
  window.word = (value) => typeof value === 'number' && !Number.isFinite(value) ? String(value) : value;
  const open = (key, each) => key.startsWith('_') ? undefined : word(each);
  window.kept = (value) => JSON.parse(JSON.stringify(value ?? null, open));
  window.drawn = () => kept(gd.data);
  window.layout = () => kept(gd.layout);
}"""


class _Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        file = PLOTLY if path == "/plotly.min.js" else STATIC / path.removeprefix("/static/")
        body = PAGE if path == "/" else file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if path == "/" else "text/javascript")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The page's files under the policy of the real server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Files) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}/"
        served.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def tab(server: str, chromium: Any) -> Iterator[Page]:
    context = chromium.new_context(
        viewport={"width": 1000, "height": 800}, timezone_id="Asia/Tokyo"
    )
    page = context.new_page()
    page.goto(server)
    page.evaluate(HELPERS)
    yield page
    context.close()


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    """A page on which nothing may go wrong."""
    wrong: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    def on_error(error: Error) -> None:
        wrong.append(str(error))

    tab.on("console", on_console)
    tab.on("pageerror", on_error)
    tab.mouse.move(990, 790)
    tab.evaluate("() => { told.length = 0; }")
    yield tab
    tab.evaluate("() => { handle.destroy(); }")
    tab.wait_for_timeout(20)
    tab.remove_listener("console", on_console)
    tab.remove_listener("pageerror", on_error)
    assert wrong == []


def card(id: str, colour: int = 0, name: str = "") -> dict[str, Any]:
    return {"id": id, "name": name or id, "colour": colour}


def line(
    values: list[Any],
    *,
    run: str = "a",
    name: str = "s",
    label: str = "",
    role: str = "",
    key: str = "",
    **points: Any,
) -> dict[str, Any]:
    given = {
        "steps": list(range(len(values))),
        "values": values,
        "low": None,
        "high": None,
        "x": None,
        "nans": [],
        **points,
    }
    return {
        "run": run,
        "name": name,
        "label": label or name,
        "role": role,
        "key": key,
        "points": given,
    }


def axis(
    title: str = "", scale: str = "linear", low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    return {"title": title, "scale": scale, "low": low, "high": high}


def chart(kind: str, **parts: Any) -> dict[str, Any]:
    empty = {
        "lines": [],
        "levels": [],
        "spans": [],
        "bars": [],
        "marks": [],
        "matrix": None,
        "table": None,
        "info": [],
        "empty": None,
    }
    words = {
        "id": "c",
        "title": "A chart",
        "subtitle": "",
        "reduce": "max",
        "colours": "sequential",
        "wide": False,
        "pick": "",
    }
    return {**words, **empty, "kind": kind, "x": axis(), "y": axis(), **parts}


def put(
    page: Page,
    content: dict[str, Any],
    *,
    theme: str = "light",
    runs: list[dict[str, Any]] | None = None,
    **look: Any,
) -> list[dict[str, Any]]:
    """Mount a chart; the traces Plotly has."""
    how = {"look": {**LOOK, **look}, "theme": theme, "runs": runs or [card("a", 0), card("b", 1)]}
    page.evaluate("([chart, how]) => put(chart, how)", [content, how])
    return [] if content["kind"] == "table" else page.evaluate("drawn()")


def again(page: Page, call: str, *arguments: Any) -> list[dict[str, Any]]:
    """Query something of the handle; the traces after it was drawn."""
    return page.evaluate(
        f"async (given) => {{ handle.{call}(...given); await handle.drawn; return drawn(); }}",
        list(arguments),
    )


def named(traces: list[dict[str, Any]], start: str) -> list[dict[str, Any]]:
    return [trace for trace in traces if trace.get("uid", "").startswith(start)]


def pure(page: Page, module: str, call: str, *arguments: Any) -> Any:
    """A pure function of the page, called with JSON."""
    return page.evaluate(
        f"async (given) => kept((await import('/static/charts/{module}.js')).{call}(...given))",
        list(arguments),
    )


def numbers(values: list[Any]) -> list[float | None]:
    return [None if value is None else float(value) for value in values]


# Lines


def test_the_values_on_the_screen_are_those_that_were_given(page: Page) -> None:
    first, second = [1.5, -2.0, 3.25, 1e-9], [0.1, 0.2, "NaN", "-Infinity"]
    traces = put(
        page,
        chart("lines", lines=[line(first, name="p", steps=[3, 7, 9, 20]), line(second, name="q")]),
    )
    lines = named(traces, "line")
    assert [(trace["x"], trace["y"]) for trace in lines] == [
        ([3, 7, 9, 20], first),
        ([0, 1, 2, 3], second),
    ]
    assert page.evaluate("gd.querySelectorAll('.scatterlayer .trace path.js-line').length") >= 2


def test_smoothing_is_the_debiased_average_and_a_nan_stays_a_gap(page: Page) -> None:
    chance = random.Random(3)
    for weight in (0.1, 0.6, 0.99):
        values: list[Any] = [chance.gauss(5, 2) for _ in range(60)]
        values[0], values[10], values[11], values[40] = "NaN", "NaN", None, "Infinity"
        expected, mean, count = [], 0.0, 0
        for value in values:
            if not isinstance(value, float):
                expected.append(math.nan)
                continue
            mean, count = weight * mean + (1 - weight) * value, count + 1
            expected.append(mean / (1 - weight**count))
        traces = put(page, chart("lines", lines=[line(values, nans=[0, 10, 40])]), smooth=weight)
        assert numbers(named(traces, "line")[0]["y"]) == pytest.approx(
            expected, rel=1e-12, nan_ok=True
        )
        assert named(traces, "raw")[0]["y"] == values
        assert named(traces, "raw")[0]["hoverinfo"] == "skip"


def test_the_envelope_is_the_smallest_and_largest_over_the_window(page: Page) -> None:
    chance = random.Random(4)
    values: list[Any] = [chance.gauss(0, 1) if chance.random() > 0.1 else None for _ in range(80)]
    for width in (1, 3, 10):
        for sign, pick in ((1, min), (-1, max)):
            seen = numbers(pure(page, "smooth", "rolling", values, width, sign))
            for at, value in enumerate(values):
                inside = [
                    each for each in values[max(0, at - width + 1) : at + 1] if each is not None
                ]
                assert (math.isnan(seen[at] or math.nan) and value is None) or seen[at] == pick(
                    inside
                )


def test_a_thinned_series_has_a_band_to_its_extremes(page: Page) -> None:
    given = line([1, 2, 3], low=[0.5, "NaN", 2], high=[9, "NaN", 4])
    (band,) = named(put(page, chart("lines", lines=[given])), "band")
    assert band["fill"] == "toself"
    assert band["y"] == []  # single buckets between gaps have no area
    whole = line([1, 2, 3], low=[0.5, 1, 2], high=[9, 3, 4])
    (band,) = named(put(page, chart("lines", lines=[whole])), "band")
    assert (band["x"], band["y"]) == ([0, 1, 2, 2, 1, 0], [9, 3, 4, 2, 1, 0.5])
    assert named(put(page, chart("lines", lines=[whole]), envelope=False), "band") == []


def test_a_band_that_is_drawn_coarser_keeps_every_spike(page: Page) -> None:
    low, high = [0.0] * 5000, [1.0] * 5000
    low[1234], high[4321] = -7.0, 99.0
    coarse = pure(page, "smooth", "coarser", list(range(5000)), low, high, 100)
    assert len(coarse["x"]) <= 100
    assert (min(coarse["low"]), max(coarse["high"]), coarse["x"][0], coarse["x"][-1]) == (
        -7.0,
        99.0,
        0,
        4999,
    )
    sparse = pure(page, "smooth", "sparser", list(range(5000)), high, 200)
    assert len(sparse["x"]) <= 200
    assert dict(zip(sparse["x"], sparse["y"], strict=True))[4321] == 99.0


def test_nan_and_inf_are_marked_at_the_bottom_edge(page: Page) -> None:
    traces = put(
        page, chart("lines", lines=[line([1, "NaN", 2, "Infinity", None, 3], nans=[1, 3])])
    )
    (marks,) = named(traces, "edge")
    assert (marks["x"], marks["yaxis"], marks["marker"]["symbol"]) == ([1, 3], "y2", "x")
    assert marks["hovertext"] == ["NaN or Inf at step 1", "NaN or Inf at step 3"]
    bottom = page.evaluate("gd._fullLayout._size.t + gd._fullLayout._size.h")
    tops = page.evaluate(
        "[...gd.querySelectorAll('.xy2 .points path')].map((mark) => "
        "mark.getBoundingClientRect().top - gd.getBoundingClientRect().top)"
    )
    assert len(tops) == 2
    assert all(abs(top - bottom) < 20 for top in tops)


def test_many_nans_are_told_together(page: Page) -> None:
    steps = list(range(500))
    (marks,) = named(put(page, chart("lines", lines=[line(["NaN"] * 500, nans=steps)])), "edge")
    assert len(marks["x"]) <= 80
    assert marks["hovertext"][0] == "NaN or Inf at 7 points, steps 0 to 6"


def test_a_log_axis_is_one_and_marks_what_it_cannot_show(page: Page) -> None:
    traces = put(
        page, chart("lines", y=axis("norm", "log"), lines=[line([1e-6, 1e-3, 0, -2, 10.0])])
    )
    (marks,) = named(traces, "edge")
    assert (marks["x"], marks["hovertext"]) == (
        [2, 3],
        ["zero or negative at step 2", "zero or negative at step 3"],
    )
    assert page.evaluate(
        "[gd._fullLayout.yaxis.type, gd.layout.yaxis.tickvals.filter((at) => at < 1)]"
    ) == [
        "log",
        [1e-6, 1e-4, 1e-2],
    ]
    assert (
        named(
            put(page, chart("lines", y=axis("norm", "log"), lines=[line([1, 0])]), y="linear"),
            "edge",
        )
        == []
    )
    assert page.evaluate("gd._fullLayout.yaxis.type") == "linear"
    put(page, chart("lines", lines=[line([1, 200])]), y="log")
    ticks = page.evaluate("[...gd.querySelectorAll('.ytick text')].map((text) => text.textContent)")
    assert [tick.replace("\u200b", "") for tick in ticks] == ["1", "10", "100"]


def test_points_alone_are_seen(page: Page) -> None:
    (one,) = named(put(page, chart("lines", lines=[line([5.0])])), "line")
    assert "markers" in one["mode"]
    values: list[Any] = [1.0] * 100
    values[49], values[51] = None, "NaN"
    (lone,) = named(put(page, chart("lines", lines=[line(values, nans=[51])])), "line")
    assert [at for at, size in enumerate(lone["marker"]["size"]) if size] == [50]


def test_the_x_axis_is_the_one_that_was_asked_for(page: Page) -> None:
    def given(x: list[Any]) -> dict[str, Any]:
        return chart(
            "lines",
            lines=[line([1, 2, 3], x=x)],
            spans=[{"first": 0, "last": None, "label": "bad", "severity": "warn"}],
        )

    seconds = 1_700_000_000
    (wall,) = named(put(page, given([seconds, seconds + 60, "NaN"]), x="wall"), "line")
    tokyo = 9 * 3600 * 1000
    assert wall["x"] == [seconds * 1000 + tokyo, (seconds + 60) * 1000 + tokyo, None]
    assert page.evaluate("[gd._fullLayout.xaxis.type, gd.layout.shapes.length]") == ["date", 0]
    put(page, given([0, 3600, 9000]), x="relative")
    assert page.evaluate("gd.layout.xaxis.ticktext") == ["0", "30m", "1h", "1h 30m", "2h", "2h 30m"]
    (metric,) = named(put(page, given([9, 2, 5]), x="metric:loss"), "line")
    assert (metric["x"], page.evaluate("gd.layout.xaxis.title.text")) == ([9, 2, 5], "loss")
    put(page, given([1, 10, 100]), x="env_steps", logx=True)
    assert page.evaluate("gd._fullLayout.xaxis.type") == "log"


def test_points_that_a_log_x_axis_cannot_show_are_counted(page: Page) -> None:
    put(page, chart("lines", lines=[line([1, 2, 3])]), logx=True)
    assert (
        page.evaluate("gd.querySelector('.annotation').textContent")
        == "1 point at x ≤ 0 not on this axis"
    )


def test_words_of_spans_that_begin_near_each_other_do_not_lie_on_each_other(page: Page) -> None:
    first = {"first": 0, "last": 9, "label": "steps 0 to 9", "severity": "warn"}
    near, far = first | {"first": 1, "label": "since step 1"}, first | {"first": 5, "label": "late"}
    put(page, chart("lines", lines=[line([1.0] * 10)], spans=[first, near, far]))
    words = page.evaluate("[...gd.querySelectorAll('.annotation')].map((text) => text.textContent)")
    assert words == ["steps 0 to 9 · since step 1", "late"]


def test_levels_and_spans_are_drawn_with_their_words(page: Page) -> None:
    spans = [{"first": 1, "last": None, "label": "a < b", "severity": "critical"}]
    put(
        page,
        chart(
            "lines",
            lines=[line([1, 2, 3])],
            levels=[{"value": 1.5, "label": "limit & more"}],
            spans=spans,
        ),
    )
    span, level = page.evaluate("layout()")["shapes"]
    assert (span["x0"], span["x1"], level["y0"], level["line"]["dash"]) == (1, 2, 1.5, "dash")
    words = page.evaluate("[...gd.querySelectorAll('.annotation')].map((text) => text.textContent)")
    assert words == ["limit & more", "a < b"]
    tops = page.evaluate(
        "[...gd.querySelectorAll('.annotation')].map((text) => text.getBoundingClientRect().bottom)"
    )
    assert (
        tops[1] <= area(page)["top"] + 1 < tops[0]
    )  # the span's stand above the plot, where no line is


def test_onsets_have_a_lane_each_below_the_lines_from_the_step_they_began(page: Page) -> None:
    onsets = [
        {"step": 1, "label": "a < b", "note": "it fell", "severity": "critical"},
        {"step": 2, "label": "late", "note": "", "severity": "warn"},
    ]
    content = chart("lines", lines=[line([1, 2, 3])], onsets=onsets)
    put(page, content)
    layout = page.evaluate("layout()")
    bars = [shape for shape in layout["shapes"] if shape["type"] == "rect"]
    assert [(bar["x0"], bar["x1"]) for bar in bars] == [(1, 2), (2, 2)]
    floor = layout["yaxis"]["domain"][0]
    assert 0 < bars[1]["y0"] < bars[1]["y1"] <= bars[0]["y0"] < bars[0]["y1"] < floor
    marks = [shape for shape in layout["shapes"] if shape.get("line", {}).get("dash") == "dot"]
    assert [(mark["x0"], mark["y0"], mark["y1"]) for mark in marks] == [
        (1, floor, 1),
        (2, floor, 1),
    ]
    words = page.evaluate("[...gd.querySelectorAll('.annotation')].map((text) => text.textContent)")
    assert [" ".join(each.split()) for each in words] == [
        "1 step 1 · it fell (a < b)",
        "2 late · step 2",
    ]
    assert layout["annotations"][1]["xanchor"] == "right"  # no room behind the last step
    put(page, content, x="rollout")
    assert "domain" not in page.evaluate("layout()")["yaxis"]


def test_an_axis_on_which_nothing_lies_says_so(page: Page) -> None:
    def said() -> list[str]:
        return page.evaluate(
            "[...gd.querySelectorAll('.annotation')].map((text) => text.textContent)"
        )

    put(page, chart("lines", lines=[line([1, 2, 3], x=[None, None, "NaN"])]), x="metric:speed")
    assert said() == ["no point here has a value of speed"]
    put(page, chart("lines", lines=[line([])]))
    assert said() == ["no points yet"]
    again(page, "zoom", 5, 9)
    assert said() == ["no points in this range"]


def test_words_of_a_level_stand_where_the_numbers_are_not(page: Page) -> None:
    def below(value: float, **axis_ends: float) -> bool:
        put(
            page,
            chart(
                "lines",
                y=axis("share", **axis_ends),
                lines=[line([0.5, 0.6])],
                levels=[{"value": value, "label": "l"}],
            ),
        )
        words, rule = page.evaluate(
            "['.annotation', '.shapelayer path'].map((each) =>"
            " gd.querySelector(each).getBoundingClientRect().top)"
        )
        return words >= rule - 1

    assert below(0.9, low=0, high=1)
    assert not below(0.55, low=0, high=1)
    assert below(0.3, low=0, high=1)
    assert not below(0.3)  # at the bottom edge


def test_wide_numbers_have_room_beside_their_axis(page: Page) -> None:
    for values in ([1.0, 2.0], [123456.25, 123456.75], [-1e-5, -1.0001e-5]):
        put(page, chart("lines", y=axis("reward"), lines=[line(values)]))
        boxes = (
            "[...gd.querySelectorAll('{}')].map((text) => text.getBoundingClientRect().toJSON())"
        )
        (title,), ticks = (
            page.evaluate(boxes.format(".ytitle")),
            page.evaluate(boxes.format(".ytick text")),
        )
        assert title["left"] >= -0.01, values
        assert title["right"] <= min(tick["left"] for tick in ticks) + 0.01, values


def test_a_fixed_end_cuts_nothing_off(page: Page) -> None:
    put(page, chart("lines", y=axis("share", low=0, high=1), lines=[line([0.2, 0.4])]))
    assert page.evaluate("gd._fullLayout.yaxis.range") == pytest.approx([-0.02, 1.02])
    put(page, chart("lines", y=axis("share", low=0, high=1), lines=[line([0.2, 1.4])]))
    assert page.evaluate("gd._fullLayout.yaxis.range[1]") > 1.4


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1e-6, 10, {"10<sup>−6</sup>", "10<sup>−4</sup>", "1", "10<sup>2</sup>"}),
        (2e-4, 9e-3, {"0.0001", "0.0002", "0.0005", "0.005"}),
        (0.31, 0.42, {"0.3", "0.35", "0.4"}),
    ],
)
def test_log_ticks_say_whole_numbers(page: Page, low: float, high: float, shown: set[str]) -> None:
    put(page, chart("lines", lines=[line([1])]))
    assert shown <= set(pure(page, "axes", "logTicks", low, high)["ticktext"])


# Colours and names


def test_one_run_is_coloured_by_role_and_several_by_run_with_the_role_as_dash(page: Page) -> None:
    roles = ["raw", "clipped", "update"]
    one = named(
        put(page, chart("lines", lines=[line([1, 2], name=role, role=role) for role in roles])),
        "line",
    )
    assert len({trace["line"]["color"] for trace in one}) == 3
    both = [line([1, 2], run=run, name=role, role=role) for run in "ab" for role in roles]
    two = named(put(page, chart("lines", lines=both)), "line")
    assert [trace["line"]["color"] for trace in two] == [two[0]["line"]["color"]] * 3 + [
        two[3]["line"]["color"]
    ] * 3
    assert len({trace["line"]["dash"] for trace in two[:3]}) == 3
    assert [trace["name"] for trace in two[:2]] == ["a · raw", "a · clipped"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_only_there_to_compare_with_is_grey(page: Page, theme: str) -> None:
    roles = ["", "control:shuffled", "control:random", "kind:null_p95", "null", "term:policy"]
    items = [{"role": role, "run": ""} for role in roles]
    pens = page.evaluate(
        "async ([items, theme]) => (await import('/static/charts/palette.js')).pens(items, new"
        " Map(), theme)",
        [items, theme],
    )

    def spread(colour: str) -> int:
        channels = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        return max(channels) - min(channels)

    put(page, chart("lines", lines=[line([1])]))
    assert [spread(pen["colour"]) < 40 for pen in pens] == [False, True, True, True, True, False]
    assert len({(pen["colour"], pen["dash"]) for pen in pens[1:4]}) == 3


def test_fifty_runs_look_different_from_each_other(page: Page) -> None:
    runs = [card(f"r{at}", at) for at in range(48)]
    traces = named(
        put(
            page,
            chart("lines", lines=[line([1, 2], run=run["id"], label=run["id"]) for run in runs]),
            runs=runs,
        ),
        "line",
    )
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in traces}) == 48


def test_experts_have_the_colours_of_the_plots(page: Page) -> None:
    keys = [(expert, tier) for expert in range(4) for tier in ("top", "bottom", "middle")]
    lines = [
        line([1, 2], name=f"{expert}{tier}", role=f"expert:{expert}:{tier}")
        for expert, tier in keys
    ]
    traces = named(put(page, chart("lines", lines=lines)), "line")
    assert [trace["line"]["color"] for trace in traces] == [*CLEAN, *WARM[0], *WARM[1], *WARM[2]]


def test_the_seeds_of_a_group_are_faint_and_go_with_their_mean(page: Page) -> None:
    seeds = [line([1, 2], run=run, label=run, role="faint", key="group:ppo") for run in "ab"]
    mean = line(
        [1, 3],
        run="group:ppo",
        label="ppo: mean ± std",
        role="mean",
        key="group:ppo",
        low=[0, 2],
        high=[2, 4],
    )
    other = line([5, 6], run="c", label="c")
    content = chart("lines", lines=[*seeds, mean, other])
    traces = put(page, content, envelope=False, runs=[card("a", 3), card("b", 4), card("c", 5)])
    faint, second, average, alone = named(traces, "line")
    assert (
        faint["line"]["color"]
        == second["line"]["color"]
        == average["line"]["color"]
        != alone["line"]["color"]
    )
    assert faint["opacity"] < 0.5 < average["opacity"]
    assert [band["y"] for band in named(traces, "band")] == [[2, 4, 2, 0]]
    assert page.locator(".chart-legend button").all_inner_texts() == ["ppo: mean ± std", "c"]
    page.locator(".chart-legend button").nth(0).click()
    page.evaluate("handle.drawn")
    assert [trace["visible"] for trace in named(page.evaluate("drawn()"), "line")] == [
        "legendonly"
    ] * 3 + [True]


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_stand_out_from_the_ground(page: Page, theme: str) -> None:
    put(page, chart("lines", lines=[line([1])]))
    ground = pure(page, "palette", "inks", theme)
    assert contrast(ground["text"], ground["paper"]) > 7
    assert contrast(ground["muted"], ground["paper"]) > 4.5
    runs = [pure(page, "palette", "runColour", card("a", at), theme) for at in range(8)]
    assert len(set(runs)) == 8
    assert all(contrast(colour, ground["paper"]) > 2.5 for colour in runs)
    for severity in ("fine", "info", "warn", "critical", "unknown"):
        assert (
            contrast(pure(page, "palette", "severityColour", severity, theme), ground["paper"]) > 4
        )
    experts = [
        {"role": f"expert:{expert}:{tier}"} for expert in range(4) for tier in ("bottom", "middle")
    ]
    pens = page.evaluate(
        "async ([items, theme]) => (await import('/static/charts/palette.js')).pens(items, new"
        " Map(), theme)",
        [experts, theme],
    )
    assert all(contrast(pen["colour"], ground["paper"]) > 2.4 for pen in pens)


def test_the_dark_theme_changes_every_colour_and_no_number(page: Page) -> None:
    content = chart("lines", lines=[line([1, 2]), line([3, 4], name="t", role="raw")])
    light, dark = named(put(page, content), "line"), named(put(page, content, theme="dark"), "line")
    assert [trace["y"] for trace in light] == [trace["y"] for trace in dark]
    assert all(
        one["line"]["color"] != other["line"]["color"]
        for one, other in zip(light, dark, strict=True)
    )
    traces = page.evaluate(
        "async () => { handle.look({ ...context, theme: 'light' }); await handle.drawn; return"
        " drawn(); }"
    )
    assert [trace["line"] for trace in named(traces, "line")] == [trace["line"] for trace in light]


EVIL = [
    "<script>alert(1)</script>",
    "<b>x</b>",
    "a & b &lt; %{y}",
    '<img src=x onerror="told.push(1)">',
]


def test_names_are_shown_as_text(page: Page) -> None:
    runs = [card(name, at) for at, name in enumerate(EVIL)]
    put(
        page,
        chart("lines", lines=[line([1, 2, 3], run=name, label=name) for name in EVIL]),
        runs=runs,
    )
    assert page.locator(".chart-legend button").all_inner_texts() == EVIL
    box = area(page)
    page.mouse.move(box["left"] + box["width"] / 2, box["top"] + box["height"] / 2)
    page.wait_for_selector(".hoverlayer .name")
    assert set(page.locator(".hoverlayer .name").all_text_contents()) <= set(EVIL)
    put(
        page,
        chart("map", pick="layer", lines=[line([1, 2], name=name) for name in EVIL]),
        runs=runs,
    )
    ticks = page.evaluate("[...gd.querySelectorAll('.ytick text')].map((text) => text.textContent)")
    assert sorted(ticks) == sorted(EVIL)
    put(
        page,
        chart(
            "bars",
            bars=[
                {
                    "label": "v",
                    "role": "",
                    "categories": EVIL,
                    "values": [1, 2, 3, 4],
                    "notes": EVIL,
                }
            ],
        ),
    )
    assert sorted(
        page.evaluate("[...gd.querySelectorAll('.xtick text')].map((text) => text.textContent)")
    ) == sorted(EVIL)
    put(page, chart("table", table={"columns": EVIL, "cells": [EVIL]}))
    assert page.locator("td").all_text_contents() == EVIL
    assert (
        page.evaluate("document.querySelectorAll('#root script, #root b, #root img').length") == 0
    )
    assert page.evaluate("told.filter((each) => each === 1).length") == 0


# Legend, hover, zoom


def test_the_legend_hides_a_line_with_all_that_belongs_to_it_and_isolates_it(page: Page) -> None:
    lines = [
        line(
            [1, "NaN", 2, 3],
            name=name,
            role=name,
            low=[0, "NaN", 1, 2],
            high=[2, "NaN", 3, 4],
            nans=[1],
        )
        for name in ("raw", "clipped", "update")
    ]
    traces = put(page, chart("lines", lines=lines), smooth=0.5)
    groups = {trace["legendgroup"] for trace in traces}
    assert len(groups) == 3
    assert all(
        len([trace for trace in traces if trace["legendgroup"] == group]) == 4 for group in groups
    )

    def seen() -> set[str]:
        page.evaluate("handle.drawn")
        return {
            trace["legendgroup"].split()[1]
            for trace in page.evaluate("drawn()")
            if trace["visible"] is True
        }

    button = page.locator(".chart-legend button")
    button.nth(0).click()
    assert seen() == {"clipped", "update"}
    assert button.nth(0).get_attribute("aria-pressed") == "false"
    button.nth(0).click()
    assert seen() == {"raw", "clipped", "update"}
    button.nth(1).dblclick()
    assert seen() == {"clipped"}
    again(page, "append", chart("lines", lines=[line([9], name="raw", role="raw", steps=[4])]))
    assert seen() == {"clipped"}
    button.nth(1).dblclick()
    assert seen() == {"raw", "clipped", "update"}


def test_one_line_needs_no_legend(page: Page) -> None:
    put(page, chart("lines", lines=[line([1, 2])]))
    assert page.locator(".chart-legend button").count() == 0


def area(page: Page) -> dict[str, float]:
    return page.evaluate("gd.querySelector('.nsewdrag').getBoundingClientRect().toJSON()")


def test_hover_is_told_and_can_be_shown_without_being_told(page: Page) -> None:
    values = [float(at) for at in range(101)]
    put(
        page,
        chart(
            "lines", lines=[line(values, name="p"), line([2 * value for value in values], name="q")]
        ),
    )
    page.evaluate("handle.hover(40)")
    assert page.evaluate("told") == []
    assert {"p 40", "q 80"} <= set(page.locator("#root").inner_text().split("\n"))
    page.evaluate("handle.hover(null)")
    assert "q 80" not in page.locator("#root").inner_text()
    box = area(page)
    page.mouse.move(box["left"] + box["width"] * 0.5, box["top"] + 40)
    page.wait_for_function("told.length > 0")
    name, id, x = page.evaluate("told.at(-1)")
    assert (name, id) == ("hover", "c")
    assert x == pytest.approx(50, abs=1)
    page.mouse.move(990, 790)
    page.wait_for_function("told.at(-1)[2] === null")


def test_dragging_zooms_x_and_a_double_click_shows_all_again(page: Page) -> None:
    put(page, chart("lines", lines=[line([float(at) for at in range(101)])]))
    box = area(page)
    page.mouse.move(box["left"] + box["width"] * 0.25, box["top"] + 50)
    page.mouse.down()
    page.mouse.move(box["left"] + box["width"] * 0.75, box["top"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_function("told.some((each) => each[0] === 'zoom')")
    _, first, last = page.evaluate("told.find((each) => each[0] === 'zoom')")
    assert (first, last) == (pytest.approx(25, abs=1), pytest.approx(75, abs=1))
    page.evaluate("handle.drawn")
    assert page.evaluate("gd._fullLayout.xaxis.range") == pytest.approx([first, last])
    again(page, "append", chart("lines", lines=[line([5.0], steps=[101])]))
    assert page.evaluate("gd._fullLayout.xaxis.range") == pytest.approx([first, last])
    page.mouse.dblclick(box["left"] + 200, box["top"] + 50)
    page.wait_for_function("told.some((each) => each[0] === 'zoom' && each[1] === null)")
    page.evaluate("handle.drawn")
    assert page.evaluate("gd._fullLayout.xaxis.range[1]") >= 101
    told = page.evaluate("told.filter((each) => each[0] === 'zoom').length")
    again(page, "zoom", 10, 20)
    assert page.evaluate("gd._fullLayout.xaxis.range") == [10, 20]
    page.wait_for_timeout(100)
    assert page.evaluate("told.filter((each) => each[0] === 'zoom').length") == told


# Live


def test_an_append_joins_new_points_once_and_leaves_the_rest_alone(page: Page) -> None:
    put(page, chart("lines", lines=[line([1, 2, 3], name="p"), line([7, 8], name="q")]))
    before = page.evaluate("(window.old = gd.data.find((trace) => trace.uid === 'line1').y).length")
    delta = chart(
        "lines",
        subtitle="later",
        levels=[{"value": 2, "label": "l"}],
        lines=[line([30, 4, "NaN"], name="p", steps=[2, 3, 4], nans=[4])],
    )
    traces = again(page, "append", delta)
    first, second = named(traces, "line")
    assert (first["x"], first["y"]) == ([0, 1, 2, 3, 4], [1, 2, 30, 4, "NaN"])
    assert named(traces, "edge")[0]["x"] == [4]
    assert second["y"] == [7, 8]
    assert before == 2
    assert page.evaluate("gd.data.find((trace) => trace.uid === 'line1').y === old")
    assert len(page.evaluate("layout()")["shapes"]) == 1
    assert named(again(page, "append", delta), "line")[0]["x"] == [0, 1, 2, 3, 4]


def test_a_thinned_series_goes_on_with_points_that_stand_for_themselves(page: Page) -> None:
    had = line([1, 2], steps=[9, 19], low=[0, 1], high=[2, 3])["points"]
    assert pure(page, "merge", "joined", had, line([5], steps=[20])["points"]) == {
        "steps": [9, 19, 20],
        "values": [1, 2, 5],
        "low": [0, 1, 5],
        "high": [2, 3, 5],
        "x": None,
        "nans": [],
    }
    on_time = line([5], steps=[20], x=[7.5])["points"]
    assert pure(page, "merge", "joined", {**had, "x": [1, 2]}, on_time)["x"] == [1, 2, 7.5]


def test_many_appends_within_a_frame_are_drawn_once(page: Page) -> None:
    put(page, chart("lines", lines=[line([1.0])]))
    delta = chart("lines", lines=[line([2.0])])
    drawn = page.evaluate(
        """async (delta) => {
          const before = Number(gd.dataset.drawn);
          for (let step = 1; step <= 50; step++) {
            delta.lines[0].points.steps = [step];
            handle.append(structuredClone(delta));
          }
          await handle.drawn;
          return Number(gd.dataset.drawn) - before;
        }""",
        delta,
    )
    assert drawn == 1
    assert len(named(page.evaluate("drawn()"), "line")[0]["x"]) == 51


def test_an_update_replaces_everything(page: Page) -> None:
    put(page, chart("lines", lines=[line([1, 2]), line([3, 4], name="t")]))
    traces = again(page, "update", chart("lines", lines=[line([9], name="u")]))
    assert [trace["y"] for trace in named(traces, "line")] == [[9]]


def test_a_chart_below_the_screen_is_drawn_too(page: Page) -> None:
    page.evaluate("() => { root.style.paddingTop = '5000px'; }")
    put(page, chart("lines", lines=[line([1, 2])]))
    assert page.evaluate("gd.data.length") == 1
    page.evaluate("() => { root.style.paddingTop = ''; }")


# Maps


def test_rows_of_buckets_that_end_elsewhere_share_columns(page: Page) -> None:
    rows = [
        line(
            [float(at + row) for at in range(100)],
            name=f"r{row}",
            steps=[at * 10 + 9 - row for at in range(100)],
        )
        for row in range(4)
    ]
    for row in rows:
        row["points"] |= {
            "low": row["points"]["values"],
            "high": [value + 0.5 for value in row["points"]["values"]],
        }
    made = pure(page, "align", "grid", rows, "max")
    assert made["steps"] == rows[0]["points"]["steps"]
    assert made["cells"] == [row["points"]["high"] for row in rows]
    assert made["where"][3][:2] == [6, 16]
    assert pure(page, "align", "grid", rows, "min")["cells"][0] == rows[0]["points"]["low"]


def test_rows_that_were_measured_at_other_steps_keep_their_gaps(page: Page) -> None:
    rows = [line([1, 2, 3, 4], steps=[0, 1, 2, 3]), line([5, 6], name="t", steps=[0, 2])]
    made = pure(page, "align", "grid", rows, "max")
    assert (made["steps"], made["cells"]) == ([0, 1, 2, 3], [[1, 2, 3, 4], [5, None, 6, None]])
    apart = [line([1, 2, 3], steps=[0, 10, 20]), line([4, 5, 6], name="t", steps=[100, 110, 120])]
    made = pure(page, "align", "grid", apart, "max")
    assert (made["steps"], made["cells"][1]) == (
        [0, 10, 20, 100, 110, 120],
        [None, None, None, 4, 5, 6],
    )


def test_a_map_tells_nan_zero_and_missing_apart(page: Page) -> None:
    rows = [
        line([1e-3, "NaN", 0, None], name="top", nans=[1]),
        line([1e-1, 1, 10, 100], name="below"),
    ]
    traces = put(page, chart("map", y=axis("norm", "log"), lines=rows))
    heat = {trace.get("meta", "main"): trace for trace in traces if trace["type"] == "heatmap"}
    assert heat["main"]["z"][0] == [pytest.approx(-3), None, None, None]
    assert heat["main"]["z"][1] == [pytest.approx(power) for power in (-1, 0, 1, 2)]
    assert heat["main"]["customdata"][1] == [1e-1, 1, 10, 100]
    assert heat["NaN or Inf"]["z"] == [[None, 1, None, None], [None] * 4]
    assert heat["zero or negative"]["z"] == [[None, None, 1, None], [None] * 4]
    assert page.evaluate("gd._fullLayout.yaxis.range") == [1.5, -0.5]
    assert page.locator(".chart-legend span").all_inner_texts() == [
        "NaN or Inf",
        "zero or negative",
    ]


@pytest.mark.parametrize(
    ("colours", "ends"), [("sequential", [-1, 3]), ("diverging", [-3, 3]), ("health", [0, 1])]
)
def test_the_ends_of_a_colour_scale(page: Page, colours: str, ends: list[float]) -> None:
    (heat,) = put(page, chart("map", colours=colours, lines=[line([-1, 3])]))
    assert [heat["zmin"], heat["zmax"]] == ends


def test_a_click_on_a_row_or_its_name_picks_it(page: Page) -> None:
    rows = [line([1, 2, 3], name=f"layer {at}", key=f"k{at}") for at in range(4)]
    put(page, chart("map", pick="layer", lines=rows))
    box = area(page)
    page.mouse.click(box["left"] + 100, box["top"] + box["height"] * 0.3)
    page.wait_for_function("told.some((each) => each[0] === 'pick')")
    assert page.evaluate("told.find((each) => each[0] === 'pick')") == ["pick", "layer", "k1"]
    page.mouse.click(box["left"] - 20, box["top"] + box["height"] * 0.9)
    assert page.evaluate("told.filter((each) => each[0] === 'pick').at(-1)") == [
        "pick",
        "layer",
        "k3",
    ]


def test_long_row_names_are_shortened_in_the_middle_and_whole_on_hover(page: Page) -> None:
    name = "model.transformer.layers.17.self_attention.query_projection.weight"
    (heat,) = put(page, chart("map", lines=[line([1, 2], name=name)]))
    shown = page.evaluate("gd.querySelector('.ytick text').textContent")
    start, end = shown.split("…")
    assert name.startswith(start)
    assert name.endswith(end)
    assert len(shown) < 45
    assert name in heat["hovertext"][0][0]


# Bars, marks, matrices, tables


def test_bars_have_intervals_from_their_ends(page: Page) -> None:
    bars = {
        "label": "policy",
        "role": "term:policy",
        "categories": ["a", "b", "c"],
        "values": [1, 2, "NaN"],
        "low": [0.5, None, None],
        "high": [3, None, None],
    }
    traces = put(page, chart("bars", bars=[bars]))
    assert traces[0]["y"] == [1, 2, "NaN"]
    assert traces[0]["x"] == ["a", "b", "c"]
    assert (traces[0]["error_y"]["array"], traces[0]["error_y"]["arrayminus"]) == (
        [2, "NaN", "NaN"],
        [0.5, "NaN", "NaN"],
    )
    assert page.evaluate("gd.querySelectorAll('.errorbar path').length") == 1
    assert traces[1]["x"] == ["c"]
    assert traces[1]["yaxis"] == "y2"
    put(page, chart("bars", y=axis("v", "log"), bars=[{**bars, "values": [1, 100, 0]}]))
    assert page.evaluate("gd._fullLayout.yaxis.type") == "log"


def test_marks_take_numbers_and_categories(page: Page) -> None:
    curve = {
        "label": "grpo",
        "role": "",
        "run": "",
        "x": [2, 4, 8],
        "y": [1, 0.5, 0.25],
        "low": [0.9, 0.4, 0.2],
        "high": [1.5, 0.6, 0.3],
        "notes": None,
        "joined": True,
    }
    (trace,) = put(
        page, chart("marks", x=axis("group size", "log"), y=axis("variance", "log"), marks=[curve])
    )
    assert (trace["x"], trace["y"], trace["mode"]) == ([2, 4, 8], [1, 0.5, 0.25], "lines+markers")
    assert trace["error_y"]["array"] == pytest.approx([0.5, 0.1, 0.05])
    assert page.evaluate("[gd._fullLayout.xaxis.type, gd._fullLayout.yaxis.type]") == ["log", "log"]
    cloud = {**curve, "x": ["one", "one", "two"], "low": None, "high": None, "joined": False}
    (trace,) = put(page, chart("marks", marks=[cloud]))
    assert (trace["x"], trace["mode"], page.evaluate("gd._fullLayout.xaxis.type")) == (
        ["one", "one", "two"],
        "markers",
        "category",
    )


def test_a_cloud_on_a_log_axis_has_ordinary_ticks_and_a_curve_one_for_each_value(
    page: Page,
) -> None:
    shape = {
        "label": "m",
        "role": "",
        "run": "",
        "x": [0.1888, 0.2378, 13.85],
        "y": [1, 2, 3],
        "joined": False,
    }
    ticks = "[...gd.querySelectorAll('.xtick text')].map((text) => text.textContent)"
    put(page, chart("marks", x=axis("norm", "log"), marks=[shape]))
    assert (
        {"1", "10"} <= set(page.evaluate(ticks)) <= {"0.1", "0.2", "0.5", "1", "2", "5", "10", "20"}
    )
    put(
        page,
        chart("marks", x=axis("norm", "log"), marks=[{**shape, "x": [5, 10, 20], "joined": True}]),
    )
    assert page.evaluate(ticks) == ["5", "10", "20"]


def test_the_reader_chooses_the_scale_of_marks_where_every_value_has_a_place(page: Page) -> None:
    marks = {"label": "m", "role": "", "run": "", "x": ["a", "b"], "y": [1, 100], "joined": False}
    kind = "gd._fullLayout.yaxis.type"
    put(page, chart("marks", marks=[marks]), y="log")
    assert page.evaluate(kind) == "log"
    put(page, chart("marks", y=axis("v", "log"), marks=[marks]), y="linear")
    assert page.evaluate(kind) == "linear"
    put(page, chart("marks", marks=[{**marks, "y": [-1, 100]}]), y="log")
    assert page.evaluate(kind) == "linear"


def test_an_interval_without_an_end_has_no_whisker_there(page: Page) -> None:
    marks = {
        "label": "m",
        "role": "",
        "run": "",
        "x": ["a", "b"],
        "y": [1, 2],
        "low": [0.5, 1.5],
        "high": [None, 2.5],
        "joined": False,
    }
    trace, beyond = put(page, chart("marks", marks=[marks]))
    assert trace["error_y"]["array"] == ["NaN", 0.5]
    assert (beyond["error_y"]["array"], beyond["error_y"]["arrayminus"]) == (
        ["NaN", "NaN"],
        [0.5, "NaN"],
    )
    caps = page.evaluate(
        "[...gd.querySelectorAll('.errorbar path.yerror')].map((path) => path.getBBox().width)"
    )
    assert caps == [6, 0]


def test_a_matrix_has_its_numbers_written_into_it(page: Page) -> None:
    matrix = {
        "rows": ["p", "q"],
        "columns": ["p", "q"],
        "cells": [[1, -0.123456], ["NaN", None]],
        "notes": [["same", "n"], ["", ""]],
        "low": -1,
        "high": 1,
        "scale": "linear",
        "colours": "diverging",
        "written": True,
    }
    traces = put(page, chart("matrix", matrix=matrix))
    assert traces[0]["z"] == [[1, -0.123456], [None, None]]
    assert traces[0]["text"] == [["1", "−0.123"], ["", ""]]
    assert (traces[0]["zmin"], traces[0]["zmax"], traces[1]["z"]) == (
        -1,
        1,
        [[None, None], [1, None]],
    )
    assert "same" in traces[0]["hovertext"][0][0]
    texts = page.evaluate(
        "[...gd.querySelectorAll('.heatmap-label')].map((text) => text.textContent)"
    )
    assert sorted(text for text in texts if text) == sorted(["1", "−0.123", "NaN"])


def test_a_table_is_a_table(page: Page) -> None:
    put(
        page,
        chart(
            "table",
            title="Facts",
            table={
                "columns": ["name", "value"],
                "cells": [["lr", 0.000123456], ["steps", 4000], ["loss", "NaN"], ["none", None]],
            },
        ),
    )
    assert page.locator("td:nth-child(2)").all_text_contents() == ["0.0001235", "4000", "NaN", ""]
    assert (
        page.evaluate("getComputedStyle(document.querySelector('td:nth-child(2)')).textAlign")
        == "right"
    )
    assert page.get_by_role("columnheader", name="value").count() == 1
    assert page.get_by_role("region", name="Facts").count() == 1


# Taking it along


def rows_of(page: Page) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(page.evaluate("handle.csv()"))))


def test_the_csv_has_every_number_that_is_drawn(page: Page) -> None:
    put(
        page,
        chart(
            "lines",
            lines=[
                line(
                    [0.1, "NaN", None],
                    label='say "hi", you',
                    low=[0, 1, 2],
                    high=[3, 4, 5],
                    nans=[1],
                )
            ],
        ),
        smooth=0.5,
    )
    rows = rows_of(page)
    assert [row["value"] for row in rows] == ["0.1", "NaN", ""]
    assert rows[0] | {"smoothed": float(rows[0]["smoothed"])} == {
        "run": "a",
        "series": "s",
        "label": 'say "hi", you',
        "step": "0",
        "x": "0",
        "value": "0.1",
        "low": "0",
        "high": "3",
        "smoothed": 0.1,
    }
    put(
        page,
        chart(
            "bars",
            bars=[
                {
                    "label": "l",
                    "categories": ["x"],
                    "values": [2],
                    "low": [1],
                    "high": [3],
                    "notes": ["n"],
                }
            ],
        ),
    )
    assert rows_of(page) == [
        {"label": "l", "category": "x", "value": "2", "low": "1", "high": "3", "note": "n"}
    ]
    put(page, chart("marks", marks=[{"label": "l", "run": "a", "x": [1], "y": [2]}]))
    assert rows_of(page) == [
        {"run": "a", "label": "l", "x": "1", "y": "2", "low": "", "high": "", "note": ""}
    ]
    put(
        page,
        chart(
            "matrix",
            matrix={
                "rows": ["r"],
                "columns": ["c", 2],
                "cells": [[1, "NaN"]],
                "scale": "linear",
                "colours": "sequential",
            },
        ),
    )
    assert rows_of(page) == [{"": "r", "c": "1", "2": "NaN"}]
    put(page, chart("table", table={"columns": ["n", "v"], "cells": [["a,b", 1]]}))
    assert rows_of(page) == [{"n": "a,b", "v": "1"}]


@pytest.mark.parametrize("kind", ["lines", "map", "table"])
def test_the_png_is_a_picture_with_something_on_it(page: Page, kind: str) -> None:
    content = chart(
        kind,
        lines=[line([1, 2, 3]), line([2, 3, 4], name="t")],
        table={"columns": ["a"], "cells": [[1]]},
    )
    put(page, content, theme="dark")
    head, size, shades = page.evaluate("""async () => {
          const blob = await handle.png();
          const picture = await createImageBitmap(blob);
          const canvas = new OffscreenCanvas(picture.width, picture.height);
          const brush = canvas.getContext('2d');
          brush.drawImage(picture, 0, 0);
          const { data } = brush.getImageData(0, 0, picture.width, picture.height);
          const shades = new Set(new Uint32Array(data.buffer));
          const head = [...new Uint8Array(await blob.arrayBuffer())].slice(1, 4);
          return [head, [picture.width, picture.height], [shades.size, data[3]]];
        }""")
    assert bytes(head) == b"PNG"
    assert size[0] > 20
    assert size[1] > 20
    assert shades[0] > 10
    assert shades[1] == 255


def test_a_destroyed_chart_leaves_nothing(page: Page) -> None:
    put(page, chart("lines", lines=[line([1, 2]), line([1, 2], name="t")]))
    page.evaluate("() => { handle.append({ lines: [] }); handle.destroy(); }")
    page.wait_for_timeout(50)
    assert page.evaluate("root.firstChild.childNodes.length") == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "0.5s"), (59, "59s"), (90, "1m 30s"), (3600, "1h"), (90_061, "1d 1h")],
)
def test_durations_in_words(page: Page, seconds: float, words: str) -> None:
    put(page, chart("lines", lines=[line([1])]))
    assert pure(page, "text", "duration", seconds) == words


@pytest.mark.parametrize(
    ("value", "digits", "words"),
    [
        (0, 4, "0"),
        (1234567, 4, "1.235e6"),
        (0.5, 3, "0.5"),
        (123.456, 4, "123.5"),
        (-1e-7, 3, "−1e−7"),
        (99.999, 3, "100"),
        (4000, 3, "4000"),
    ],
)
def test_numbers_in_words(page: Page, value: float, digits: int, words: str) -> None:
    put(page, chart("lines", lines=[line([1])]))
    assert pure(page, "text", "written", value, digits) == words


def test_modules_stay_small() -> None:
    lengths = {
        file.name: len(file.read_text().splitlines()) for file in (STATIC / "charts").glob("*.js")
    }
    assert max(lengths.values()) <= 300, json.dumps(lengths)
