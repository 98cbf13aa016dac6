"""The page in a real Chromium over the real server: its URL, picker, controls, keys, live updates,
and how it fails."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gradiometer.charts.model import Axis, Bars, Chart, Empty, info_of
from gradiometer.dashboard.app import create_app
from gradiometer.dashboard.request import ViewRequest
from gradiometer.dashboard.shape import (
    Control,
    ExpertAnswer,
    Fact,
    FindingCard,
    Option,
    Verdict,
    View,
)
from gradiometer.dashboard.views import VIEWS
from gradiometer.errors import UnknownName
from gradiometer.records import Row
from gradiometer.store.writer import Writer

pytestmark = pytest.mark.slow

WICKED = "<script>alert(1)<script>"
LONG = "sweep-of-the-night-" + "lr-0.0003-entropy-0.01-clip-0.2-" * 4 + "seed-7"
STEPS = 40
TABS = list(VIEWS)
NAMED = {
    "button",
    "link",
    "checkbox",
    "radio",
    "combobox",
    "textbox",
    "searchbox",
    "slider",
    "DisclosureTriangle",
    "listbox",
}


def row(step: int) -> Row:
    values = {
        "reward": 1.0 + step % 7,
        "loss": 2.0 ** (-step / 8),
        "grad/all/norm/raw": 1.0 + step % 3,
        "entropy": 0.5,
    }
    return Row(step=step, wall_time=1e9 + 10 * step, env_steps=step * 100, values=values)


def write(folder: Path, steps: range = range(STEPS)) -> None:
    with Writer(
        folder, facts={"started": "2026-01-01", "config": {"lr": 0.1, "name": folder.name}}
    ) as writer:
        for step in steps:
            writer.put(row(step))


def bench(request: ViewRequest) -> View:
    """A view with one of everything, whose numbers are the runs'."""
    query = request.query
    if request.focus.id == "c" and query.option("pick") == "three":
        raise UnknownName("pick", "three", ["one", "two"], hint="(there are one, two)")
    options = [Option(value=value, label=value.title()) for value in ("one", "two", "three")]
    controls = [
        Control(
            kind="choice",
            name="pick",
            label="Pick",
            value=query.option("pick", "one"),
            options=options,
        ),
        Control(
            kind="slider",
            name="at",
            label="Stage",
            value=query.option("at", "three"),
            options=options,
        ),
        Control(
            kind="many",
            name="some",
            label="Some",
            value=",".join(query.every("some") or ("one", "two")),
            options=options,
        ),
        Control(
            kind="text",
            name="match",
            label="Match",
            value=query.option("match"),
            hint="a regular expression",
        ),
    ]
    picture = Chart(
        id="bars",
        kind="bars",
        title="Bars",
        section="Others",
        bars=[
            Bars(
                label="share",
                categories=["x", "y"],
                values=[1.0, float(len(query.option("pick", "one")))],
            )
        ],
    )
    missing = Empty(
        title="No replicates",
        cause="None were measured.",
        fix="Measure some.",
        code="gradiometer variance",
    )
    charts = [
        _chart(request, "reward", "Curves"),
        _chart(request, "loss", "Curves", scale="log", pick="pick"),
        picture,
        Chart(id="gap", kind="matrix", title="Gap", section="Others", empty=missing),
        *(_chart(request, "entropy", "Far below", f"far-{place}") for place in range(12)),
    ]
    return View(
        view="estimators",
        title="Bench",
        runs=[run.id for run in request.runs],
        header=["a line above"],
        controls=controls,
        charts=charts,
        answers=[_answer(request)],
        facts=_facts(request),
    )


def _chart(
    request: ViewRequest,
    name: str,
    section: str,
    id: str = "",
    *,
    scale: Any = "linear",
    pick: str = "",
) -> Chart:
    lines = [request.line(run, name, key="two") for run in request.runs]
    return Chart(
        id=id or name,
        kind="lines",
        title=(id or name).title(),
        section=section,
        lines=lines,
        info=info_of("entropy"),
        y=Axis(scale=scale),
        pick=pick,
    )


def _answer(request: ViewRequest) -> ExpertAnswer:
    return ExpertAnswer(
        run=request.focus.id,
        question="Does it last?",
        verdict="it does",
        tone="good",
        source_reading="0.1",
        sound_reading="0.2",
        missing=["a longer run"],
    )


def _facts(request: ViewRequest) -> list[Fact]:
    same = Fact(group="Config", name="lr", values={run.id: "0.1" for run in request.runs})
    other = Fact(
        group="Config",
        name="name",
        values={run.id: run.label for run in request.runs},
        differs=len(request.runs) > 1,
    )
    return [same, other]


def ward(request: ViewRequest) -> View:
    """Two findings that share a chart, and a verdict a run."""
    cards = [
        FindingCard(
            run=request.focus.id,
            id=id,
            title=f"About {id}",
            severity=severity,
            basis="proved",
            since_step=12,
            block="actor",
            evidence=[{"series": "reward", "reading": "low", "first_step": 3, "last_step": 9}],
            cause=f"because of {WICKED}",
            fix=["do this", "then that"],
            confirm="look again",
            references=["https://example.org/paper", "a book"],
            folded=["and so on"],
            charts=charts,
        )
        for id, severity, charts in (
            ("dead", "critical", ["reward"]),
            ("slow", "warn", ["reward", "loss"]),
        )
    ]
    verdicts = [
        Verdict(
            run=run.id,
            state="broken",
            text=f"{run.label} is ill.",
            severity="critical",
            finding=cards[0],
            counts={"critical": 1, "warn": 1},
            step=9,
        )
        for run in request.runs
    ]
    charts = [_chart(request, "reward", ""), _chart(request, "loss", "")]
    shown = cards if request.query.option("with") == "findings" else []
    return View(
        view="findings",
        title="Ward",
        runs=[run.id for run in request.runs],
        verdicts=verdicts,
        findings=shown,
        charts=charts,
    )


@pytest.fixture(autouse=True)
def _views(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Our own views in the place of two, so that these tests are about the page."""
    if "real" not in request.fixturenames:
        monkeypatch.setitem(VIEWS, "estimators", bench)
        monkeypatch.setitem(VIEWS, "findings", ward)


@pytest.fixture
def real() -> None:
    """For tests of the real views."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page") / "runs"
    for name in ("a", "deep/b", "c", LONG, WICKED):
        write(root / name)
    (root / "broken").mkdir()
    (root / "broken" / "run.db").write_bytes(b"this is no database" * 100)
    os.utime(root / "broken" / "run.db", (1e9, 1e9))
    return root


@pytest.fixture(scope="module")
def home(folder: Path, serving: Callable[..., Any]) -> Iterator[str]:
    with serving(folder) as address:
        yield address


Open = Callable[..., Any]


def until(page: Any, condition: str, seconds: float = 30.0) -> None:
    """Wait for a condition in JavaScript; the page's policy forbids Playwright's own way, which
    compiles text."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"never became true: {condition}"
        page.wait_for_timeout(10)


def query(page: Any) -> dict[str, list[str]]:
    return parse_qs(page.evaluate("location.search.slice(1)"), keep_blank_values=True)


def ready(page: Any, tab: str = "estimators") -> None:
    page.wait_for_selector(f"html[data-ready={tab}]")


def settle(page: Any, address: str) -> None:
    """Until the URL has something."""
    page.wait_for_url(re.compile(re.escape(address)))
    page.wait_for_selector("html[data-ready]")


def drawn(page: Any, chart: str) -> list[list[float]]:
    """What Plotly has drawn: for each line or group of bars its y values, without raw lines and
    envelopes."""
    return page.evaluate(
        """id => [...document.querySelector(`[data-chart="${id}"] .chart-plot`).data]
             .filter(trace => trace.hoverinfo !== 'skip').map(trace => [...trace.y])""",
        chart,
    )


def mark(page: Any, chart: str = "reward") -> None:
    """Remember the element of a picture, to see later whether it is still the same."""
    page.evaluate(
        "id => (window.marked = document.querySelector(`[data-chart='${id}'] .chart-plot`))", chart
    )


def same(page: Any, chart: str = "reward") -> bool:
    return page.evaluate(
        "id => window.marked === document.querySelector(`[data-chart='${id}'] .chart-plot`)", chart
    )


def pressed(page: Any, tool: str) -> str:
    return page.get_attribute(f"[data-tool={tool}]", "aria-pressed")


def shown_runs(page: Any) -> list[str]:
    return page.eval_on_selector_all(".run.shown", "rows => rows.map(row => row.dataset.run)")


# --- The URL
# ------------------------------------------------------------------------------------------------------------


def test_a_link_brings_back_everything_and_stays_as_it_is(home: str, browse: Open) -> None:
    link = f"{home}/estimators?run=deep/b&run=a&x=relative&xfrom=50&xto=200&y=log&logx=1&smooth=0.5&raw=0&env=0&theme=dark&pick=two&at=one&match=x"
    page = browse(link)
    assert page.url == link
    assert page.get_attribute("[data-run='deep/b']", "aria-current") == ""
    assert set(shown_runs(page)) == {"a", "deep/b"}
    assert page.input_value("[data-tool=x]") == "relative"
    states = {
        tool: pressed(page, tool)
        for tool in ("y-log", "y-auto", "logx", "raw", "env", "smooth-off")
    }
    assert states == {
        "y-log": "true",
        "y-auto": "false",
        "logx": "true",
        "raw": "false",
        "env": "false",
        "smooth-off": "false",
    }
    assert page.input_value("[data-tool=smooth]") == "0.5"
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.input_value("#control-pick") == "two"
    assert page.text_content("[data-control=at] output") == "One"
    assert page.input_value("#control-match") == "x"
    page.reload()
    ready(page)
    assert page.url == link


def test_defaults_are_left_out_of_the_url_and_back_and_forward_walk_through_it(
    home: str, browse: Open
) -> None:
    page = browse(f"{home}/estimators?run=a")
    page.select_option("#control-pick", "two")
    settle(page, "pick=two")
    page.click("[data-tool=y-log]")
    page.click("[data-tab=compare]")
    ready(page, "compare")
    assert urlsplit(page.url).path == "/compare"
    assert "pick" not in query(page)
    assert query(page)["y"] == ["log"]
    page.go_back()
    ready(page)
    assert query(page) == {"run": ["a"], "pick": ["two"], "y": ["log"]}
    page.go_back()
    assert pressed(page, "y-auto") == "true"
    page.go_back()
    until(page, "document.querySelector('#control-pick').value === 'one'")
    assert query(page) == {"run": ["a"]}
    page.go_forward()
    until(page, "document.querySelector('#control-pick').value === 'two'")
    page.select_option("#control-pick", "one")
    until(page, "!location.search.includes('pick')")


def test_without_runs_the_newest_is_shown_and_the_url_says_nothing(home: str, browse: Open) -> None:
    page = browse(home + "/overview")
    newest = page.evaluate(
        "fetch('/runs.json').then(answer => answer.json()).then(told => told.runs.find(run =>"
        " run.state !== 'unreadable').id)"
    )
    assert shown_runs(page) == [newest]
    assert urlsplit(page.url).query == ""
    assert page.get_attribute("[data-tab=overview]", "aria-current") == "page"
    page.click("[data-tab=estimators]")
    ready(page)
    assert shown_runs(page) == [newest]
    assert urlsplit(page.url).query == ""


def drag(page: Any, first: float, last: float) -> None:
    """Over a part of the first chart."""
    box = page.locator("[data-chart=reward] .nsewdrag").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * first, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * last, middle, steps=6)
    page.mouse.up()


def test_a_drag_zooms_every_chart_asks_the_server_and_is_in_the_link(
    home: str, browse: Open
) -> None:
    page = browse(f"{home}/estimators?run=a")
    mark(page)
    drag(page, 0.25, 0.5)
    until(page, "location.search.includes('from=')")
    first, last = int(query(page)["from"][0]), int(query(page)["to"][0])
    assert 8 <= first < last <= 21
    until(
        page,
        "document.querySelector('[data-chart=loss] .chart-plot')._fullLayout.xaxis.range[0] > 5",
    )
    ready(page)
    assert any(f"from={first}&to={last}" in url and ".json" in url for url in page.asked)
    assert same(page)
    assert len(drawn(page, "reward")[0]) == last - first + 1
    page.go_back()  # a zoom can be taken back
    until(page, "document.querySelector('[data-chart=reward] .chart-plot').data[0].y.length === 40")
    assert query(page) == {"run": ["a"]}
    again = browse(f"{home}/estimators?run=a&from={first}&to={last}")
    span = (
        "document.querySelector('[data-chart=loss]"
        " .chart-plot')._fullLayout.xaxis.range.map(Math.round)"
    )
    assert again.evaluate(span) == [first, last]
    again.keyboard.press("r")
    until(again, "!location.search.includes('from=')")
    until(
        again, "document.querySelector('[data-chart=reward] .chart-plot').data[0].y.length === 40"
    )
    assert query(again) == {"run": ["a"]}


# --- The picker
# ---------------------------------------------------------------------------------------------------------


def test_runs_are_picked_focused_searched_and_left_alone(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    mark(page)
    page.check("[data-run=c] input")
    settle(page, "run=a&run=c")
    assert len(drawn(page, "reward")) == 2
    assert same(page)
    page.click("[data-run='deep/b'] .run-pick")
    settle(page, "run=deep/b&run=a&run=c")
    assert "focus" in page.get_attribute("[data-run='deep/b']", "class").split()
    page.hover("[data-run=c]")
    page.click("[data-run=c] .only")
    settle(page, "?run=c")
    assert shown_runs(page) == ["c"]
    page.fill("#run-search", "^(a|deep/.)$")
    until(page, "document.querySelectorAll('.run:not([hidden])').length === 2")
    page.click("text=All matching")
    until(page, "document.querySelectorAll('.run.shown').length === 2")
    assert set(query(page)["run"]) == {"a", "deep/b"}
    page.fill("#run-search", "[")  # half typed
    until(page, "document.querySelector('#run-search').getAttribute('aria-invalid') === 'true'")
    page.click("text=None")
    until(page, "location.search === ''")


def test_a_run_that_cannot_be_read_says_why_and_cannot_be_picked(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    page.wait_for_selector("[data-run=broken][data-state=unreadable]")
    assert page.is_disabled("[data-run=broken] input")
    assert "broken" in page.get_attribute("[data-run=broken]", "title")
    assert "step 39" in page.text_content("[data-run=a] .run-meta").replace("\u2009", "")


def test_a_run_called_script_is_text_everywhere(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run={WICKED}&run=a")
    assert page.text_content(f"[data-run='{WICKED}'] .run-pick") == WICKED
    assert WICKED in page.text_content(".fact-table thead")
    page.click("[data-tab=findings]")
    ready(page, "findings")
    assert page.text_content(".verdict-text strong") == f"{WICKED} is ill."
    assert f"because of {WICKED}" in page.text_content(".verdict")
    assert page.evaluate("document.body.querySelectorAll('script').length") == 0


def test_hundreds_of_runs_are_rows_made_once(home: str, browse: Open) -> None:
    page = browse(home + "/estimators?run=a", wait=False)
    ready(page)
    took = page.evaluate("""async () => {
             const { createPicker } = await import('/static/picker.js');
             const host = document.createElement('div');
             const picker = createPicker(host, { choose() {}, close() {} });
             const cards = [...Array(600).keys()].map(n => ({ id: `s/run-${n}`, name: `run-${n}`, colour: n, state: 'still',
               newest_step: n, started: '', changed: 1e9, kind: 'run', problem: '' }));
             picker.fill(cards);
             const before = [...host.querySelectorAll('[data-run]')];
             picker.fill(cards.slice(1));
             picker.show(cards.slice(1).map(card => card.id));
             const after = [...host.querySelectorAll('[data-run]')];
             return [before.length, after.length, after.every((row, place) => row === before[place + 1])];
           }""")
    assert took == [600, 599, True]


# --- Controls and words
# -------------------------------------------------------------------------------------------------


def test_each_control_sets_its_parameter_and_the_charts_stay(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    mark(page)
    page.evaluate("scrollTo(0, 120)")
    page.select_option("#control-pick", "three")
    settle(page, "pick=three")
    assert drawn(page, "bars") == [[1, 5]]
    page.click("[aria-label='Previous stage']")
    settle(page, "at=two")
    assert page.text_content("[data-control=at] output") == "Two"
    page.click("[data-control=some] summary")
    page.check("[data-control=some] input[value=three]")
    settle(page, "some=one&some=two&some=three")
    assert page.text_content("[data-control=some] summary") == "all"
    page.type("#control-match", "a(b")
    settle(page, "match=a%28b")
    assert page.input_value("#control-match") == "a(b"
    assert page.evaluate("document.activeElement.id") == "control-match"
    assert same(page)
    assert page.evaluate("scrollY") == 120


def test_a_click_on_a_line_picks_its_key(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    page.evaluate("""() => {
             const plot = document.querySelector('[data-chart=loss] .chart-plot');
             plot.emit('plotly_click', { points: [{ curveNumber: 0, pointNumber: 1, pointIndex: 1, data: plot.data[0] }] });
           }""")
    settle(page, "pick=two")
    assert page.input_value("#control-pick") == "two"


def test_any_metric_can_be_the_x_axis(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    names = page.eval_on_selector_all(
        "#metric-names option", "options => options.map(option => option.value)"
    )
    assert names == ["entropy", "loss", "reward"]
    page.select_option("[data-tool=x]", "metric:")
    page.fill("[data-tool=metric]", "loss")
    page.keyboard.press("Enter")
    settle(page, "x=metric:loss")
    assert page.input_value("[data-tool=x]") == "metric:loss"
    until(
        page,
        "Math.abs(document.querySelector('[data-chart=reward] .chart-plot').data[0].x[0] - 1) <"
        " 1e-9",
    )
    assert axis_of(page) == ["linear", "loss"]


def axis_of(page: Any, chart: str = "reward") -> list[str]:
    return page.evaluate(
        """id => {
             const { type, title } = document.querySelector(`[data-chart=${id}] .chart-plot`)._fullLayout.xaxis;
             return [type, title.text];
           }""",
        chart,
    )


def test_a_chart_that_stays_takes_on_another_x_axis_with_its_kind_title_and_zoom(
    home: str, browse: Open
) -> None:
    page = browse(f"{home}/estimators?run=a")
    mark(page)
    assert axis_of(page) == ["linear", "step"]
    page.select_option("[data-tool=x]", "wall")
    settle(page, "x=wall")
    assert axis_of(page) == axis_of(page, "loss") == ["date", "time"]
    drag(page, 0.25, 0.5)
    until(page, "location.search.includes('xfrom=')")
    first, last = (
        float(query(page)[name][0]) - 1e9 for name in ("xfrom", "xto")
    )  # the run began at 1e9, ten seconds a step
    assert 85 <= first < last <= 210
    page.select_option("[data-tool=x]", "step")
    settle(page, "estimators?run=a")
    assert axis_of(page) == ["linear", "step"]
    assert same(page)


def test_a_view_is_asked_for_when_the_pointer_rests_on_its_tab_and_then_only_once(
    home: str, browse: Open
) -> None:
    page = browse(f"{home}/estimators?run=a")
    asked: list[str] = []
    page.on("request", lambda told: asked.append(told.url))
    with page.expect_response("**/findings.json**"):
        page.hover("[data-tab=findings]")
    page.click("[data-tab=findings]")
    settle(page, "findings?run=a")
    assert len([url for url in asked if "/findings.json" in url and "after=" not in url]) == 1


def test_verdict_first_with_cause_and_fix_and_a_way_to_the_findings(
    home: str, browse: Open
) -> None:
    page = browse(f"{home}/findings?run=a&run=c")
    banner = page.text_content(".verdict[data-severity=critical]")
    assert "a is ill." in banner
    assert "because of" in banner
    assert "do this" in banner
    assert "then that" not in banner
    assert page.get_attribute(".verdict a", "href") == "/findings?run=a&run=c"
    page.click(".verdict-row[data-verdict=c]")
    settle(page, "?run=c&run=a")
    assert "c is ill." in page.text_content(".verdict")


def test_findings_hold_their_charts_and_a_shared_one_is_drawn_once(home: str, browse: Open) -> None:
    page = browse(f"{home}/findings?run=a&with=findings")
    first = page.locator("[data-finding=dead]")
    assert first.locator("[data-chart=reward] .chart-plot").count() == 1
    assert page.locator("[data-finding=slow] [data-chart=reward]").count() == 0
    assert page.locator("[data-finding=slow] [data-chart=loss]").count() == 1
    assert page.get_attribute("[data-finding=slow] .evidence a", "href") == "#chart-reward"
    text = first.text_content()
    for words in (
        "Critical",
        "since step 12",
        "actor",
        "proved",
        "then that",
        "look again",
        "a book",
        "and so on",
    ):
        assert words in text
    assert first.locator("a[href='https://example.org/paper'][rel~=noreferrer]").count() == 1
    assert "because of" not in page.text_content(".verdict")  # it stands right below


def test_facts_have_a_column_a_run_and_what_differs_stands_out(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a&run=c")
    heads = page.eval_on_selector_all(
        ".fact-table thead th", "cells => cells.map(cell => cell.textContent)"
    )
    assert heads == ["Name", "a", "c"]
    differing = page.eval_on_selector_all(
        ".fact-table tr.differs", "rows => rows.map(row => row.textContent)"
    )
    assert differing == ["nameac"]
    # by key: charts that are drawn meanwhile move the box away under a pointer
    page.locator(".facts label.check input").press("Space")
    assert page.locator(".fact-table tbody tr:visible").count() == 1


def test_answers_and_empty_charts_say_what_they_have_to(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    assert "Does it last?" in page.text_content(".answer[data-tone=good]")
    assert "a longer run" in page.text_content(".answer")
    gap = page.locator("[data-chart=gap]")
    assert "None were measured." in gap.text_content()
    gap.get_by_label("Copy").click()
    page.wait_for_selector("text=copied")
    assert page.evaluate("navigator.clipboard.readText()") == "gradiometer variance"
    assert gap.locator("[data-export]:visible").count() == 0


def test_an_empty_folder_tells_how_to_fill_it_and_the_page_notices_when_it_is(
    tmp_path: Path, browse: Open, serving: Any
) -> None:
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs", quick=True) as address:
        page = browse(address + "/estimators")
        assert "No runs here yet" in page.text_content("#empty")
        assert "gradiometer demo" in page.text_content("#empty code")
        # Renamed into place: our view in place of the real one asks for series at once, and a run
        # that is being written has none for a moment.
        write(tmp_path / "late")
        (tmp_path / "late").rename(tmp_path / "runs" / "late")
        page.wait_for_selector(".run[data-run=late].shown")
        page.wait_for_selector("[data-chart=reward] .chart-plot")
        page.leave()


# --- Charts
# -------------------------------------------------------------------------------------------------------------


def test_charts_out_of_sight_cost_nothing_until_they_are_seen(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    last = "[data-chart=far-11] .chart-plot"
    assert page.locator("[data-chart]").count() == 16
    assert page.locator(last).count() == 0
    page.locator("[data-chart=far-11]").scroll_into_view_if_needed()
    page.wait_for_selector(f"{last}[data-drawn]")


def test_words_come_before_charts_and_both_are_marked(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    marks = page.evaluate(
        "Object.fromEntries(performance.getEntriesByType('mark').map(mark => [mark.name,"
        " mark.startTime]))"
    )
    assert 0 < marks["words"] < marks["charts"]


def test_a_hover_shows_on_the_other_charts(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    box = page.locator("[data-chart=reward] .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    page.mouse.move(box["x"] + box["width"] / 2 + 4, box["y"] + 40)
    lines = """[...document.querySelectorAll('[data-chart=loss] .plot div')]
                 .filter(part => part.style.borderLeft.includes('dotted') && part.style.display === 'block').length"""
    until(page, f"{lines} === 1")
    page.mouse.move(5, 5)
    until(page, f"{lines} === 0")


def test_about_full_size_and_exports(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    page.focus("[aria-label='About Reward']")
    page.keyboard.press("Enter")
    assert "entropy" in page.text_content(".about:popover-open").lower()
    page.keyboard.press("Escape")
    assert page.locator(".about:popover-open").count() == 0
    with page.expect_download() as taken:
        page.click("[aria-label='CSV of Reward']")
    assert taken.value.suggested_filename == "gradiometer-estimators-reward.csv"
    assert len(Path(taken.value.path()).read_text().strip().splitlines()) == STEPS + 1
    with page.expect_download() as taken:
        page.click("[aria-label='PNG of Reward']")
    assert Path(taken.value.path()).read_bytes().startswith(b"\x89PNG")
    mark(page)
    page.click("[aria-label='Full size of Reward']")
    until(page, "location.search.includes('full=reward')")
    wide = "document.querySelector('[data-chart=reward] .chart-plot')._fullLayout.width"
    until(page, f"{wide} > 1000")
    link = page.url
    page.keyboard.press("Escape")
    until(page, f"{wide} < 700 && !location.search.includes('full')")
    assert same(page)
    assert browse(link).locator("dialog[open] [data-chart=reward]").count() == 1


# --- Live
# ---------------------------------------------------------------------------------------------------------------


@contextmanager
def live_run(root: Path) -> Iterator[Writer]:
    with Writer(root / "now", facts={"started": "2026-01-01"}) as writer:
        for step in range(10):
            writer.put(row(step))
        writer.flush()
        yield writer


def more(writer: Writer, steps: range) -> None:
    for step in steps:
        writer.put(row(step))
    writer.flush()


def has(page: Any, number: int) -> None:
    until(
        page,
        f"document.querySelector('[data-chart=reward] .chart-plot').data[0].y.length === {number}",
    )


def test_only_new_points_travel_and_are_added_to_what_is_there(
    tmp_path: Path, browse: Open, serving: Any
) -> None:
    answers: list[dict[str, Any]] = []
    with live_run(tmp_path) as writer, serving(tmp_path, quick=True) as address:
        page = browse(address + "/estimators")
        page.wait_for_selector("[data-status=live]")

        def keep(answer: Any) -> None:
            if "after=" in answer.url:
                answers.append(answer.json())

        page.on("response", keep)
        mark(page)
        has(page, 10)
        more(writer, range(10, 15))
        has(page, 15)
        assert same(page)
        assert drawn(page, "reward")[0] == [1.0 + step % 7 for step in range(15)]
        until(
            page, "document.querySelector('[data-run=now] .run-meta').textContent.includes('live')"
        )
        assert "step 14" in page.text_content("[data-run=now] .run-meta")
        page.locator(
            "[data-chart=far-11]"
        ).scroll_into_view_if_needed()  # was never drawn, and is whole
        page.wait_for_selector("[data-chart=far-11] .chart-plot[data-drawn]")
        assert len(drawn(page, "far-11")[0]) == 15
        page.remove_listener("response", keep)
        page.leave()
    news = [answer for answer in answers if answer["charts"]]
    assert news
    assert all(answer["delta"] for answer in news)
    assert [
        step for answer in news for step in answer["charts"][0]["lines"][0]["points"]["steps"]
    ] == list(range(10, 15))


def test_without_events_the_page_polls(
    tmp_path: Path, browse: Open, serving: Any, chromium: Any
) -> None:
    with live_run(tmp_path) as writer, serving(tmp_path, quick=True) as address:
        page = browse(
            "about:blank", wait=False, complaints=True
        )  # the refused stream is a complaint of the browser
        page.route("**/live", lambda route: route.abort())
        page.goto(address + "/estimators")
        ready(page)
        page.wait_for_selector("[data-status=polling]")
        assert page.text_content("#status-word") == "polling"
        more(writer, range(10, 13))
        has(page, 13)
        page.leave()


def test_a_page_that_nobody_sees_rests_and_catches_up(
    tmp_path: Path, browse: Open, serving: Any
) -> None:
    hide = """hidden => {
                Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
                document.dispatchEvent(new Event('visibilitychange'));
              }"""
    with live_run(tmp_path) as writer, serving(tmp_path, quick=True) as address:
        page = browse(address + "/estimators")
        page.wait_for_selector("[data-status=live]")
        page.wait_for_timeout(300)  # three rounds
        page.evaluate(hide, True)
        before = len(page.asked)
        more(writer, range(10, 20))
        page.wait_for_timeout(500)
        assert len(page.asked) == before
        page.evaluate(hide, False)
        has(page, 20)
        page.leave()


def test_a_server_that_went_away_is_said_quietly_and_found_again(
    tmp_path: Path, browse: Open, serving: Any
) -> None:
    with live_run(tmp_path) as writer:
        with serving(tmp_path, quick=True) as address:
            page = browse(f"{address}/estimators", complaints=True)
            page.wait_for_selector("[data-status=live]")
            has(page, 10)
            mark(page)
        page.wait_for_selector("[data-status=offline]")
        assert page.text_content("#status-word") == "offline, trying again"
        assert page.locator(".problem").count() == 0
        assert len(drawn(page, "reward")[0]) == 10
        page.select_option("#control-pick", "two")  # what is asked meanwhile is not forgotten
        more(writer, range(10, 16))
        with serving(tmp_path, quick=True, port=urlsplit(address).port):
            page.wait_for_selector("[data-status=live]")
            has(page, 16)
            until(
                page,
                "JSON.stringify([...document.querySelector('[data-chart=bars]"
                " .chart-plot').data[0].y]) === '[1,3]'",
            )
            assert same(page)
            assert query(page)["pick"] == ["two"]
            page.leave()


# --- Errors
# -------------------------------------------------------------------------------------------------------------


def test_an_unknown_run_in_a_link_offers_those_there_are(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=nope", complaints=True)
    page.wait_for_selector("[data-problem=unknown-run] .chip")
    assert "unknown run 'nope'" in page.text_content(".problem")
    assert page.locator(".problem .chip", has_text="deep/b").count() == 1
    assert (
        len([url for url in page.asked if "run=nope" in url and ".json" in url]) == 1
    )  # not asked again and again
    page.click(".problem .chip:has-text('deep/b')")
    settle(page, "?run=deep/b")
    assert page.locator(".problem").count() == 0
    assert len(drawn(page, "reward")) == 1


def test_a_choice_that_another_run_does_not_know_is_left_out(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a&pick=three&match=x", complaints=True)
    page.hover("[data-run=c]")
    page.click("[data-run=c] .only")
    until(page, "location.search === '?run=c&match=x'")
    ready(page)
    assert page.locator(".problem").count() == 0
    assert page.input_value("#control-pick") == "one"


def test_a_choice_in_a_link_that_is_not_known_can_be_left_out(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=c&pick=three&match=x", complaints=True)
    assert "unknown pick 'three'" in page.text_content("[data-problem=unknown-pick]")
    page.click("text=Leave out pick=three")
    ready(page)
    assert query(page) == {"run": ["c"], "match": ["x"]}
    assert page.locator(".problem").count() == 0


def test_a_view_that_fails_leaves_the_rest_working(
    home: str, browse: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(request: ViewRequest) -> View:
        raise RuntimeError(f"no such luck {WICKED}")

    monkeypatch.setitem(VIEWS, "compare", fails)
    page = browse(f"{home}/compare?run=a", complaints=True)
    page.wait_for_selector("[data-problem=fault]")
    assert WICKED in page.text_content(".problem")
    page.click("[data-tab=estimators]")
    ready(page)
    assert page.locator(".problem").count() == 0
    assert drawn(page, "reward")
    page.evaluate(
        "history.pushState(null, '', '/estimators?run=a&from=soon'); dispatchEvent(new"
        " PopStateEvent('popstate'))"
    )
    page.wait_for_selector("[data-problem=bad-request]")
    page.click("text=Start afresh")
    page.wait_for_selector(".problem", state="detached")
    assert urlsplit(page.url).query == ""


# --- Keys, looks, sizes
# -------------------------------------------------------------------------------------------------


def test_the_keyboard_does_it_all_but_not_while_typing(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a")
    for key, tool, pushed in (
        ("s", "smooth-off", "false"),
        ("l", "y-log", "true"),
        ("e", "env", "false"),
    ):
        page.keyboard.press(key)
        assert pressed(page, tool) == pushed
    assert query(page) == {"run": ["a"], "smooth": ["0.6"], "y": ["log"], "env": ["0"]}
    for key in "sle":
        page.keyboard.press(key)
    assert query(page) == {"run": ["a"]}
    page.keyboard.press("x")
    settle(page, "x=wall")
    page.keyboard.press("d")
    assert page.get_attribute("html", "data-theme") == "light"
    assert query(page)["theme"] == ["light"]
    page.keyboard.press("?")
    assert page.locator("dialog.help[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("dialog.help[open]").count() == 0
    page.keyboard.press("j")
    until(page, "!location.search.includes('run=a&')")
    page.keyboard.press("k")
    until(page, "location.search.includes('run=a')")
    page.keyboard.press("/")
    page.keyboard.type("s?l1")
    assert page.input_value("#run-search") == "s?l1"
    assert urlsplit(page.url).path == "/estimators"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(str(TABS.index("compare") + 1))
    ready(page, "compare")


def test_the_theme_follows_the_system_unless_told(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a", colours="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    assert page.get_attribute("html", "data-theme") == "dark"
    page.emulate_media(color_scheme="light")
    page.wait_for_selector("html[data-theme=light]")
    light = page.evaluate(ground)
    assert light != dark
    colour = "document.querySelector('[data-run=a] .swatch').style.background"
    usual = page.evaluate(colour)
    told = browse(f"{home}/estimators?run=a&theme=dark", colours="light")
    assert told.evaluate(ground) == dark
    assert told.evaluate(colour) != usual


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_word_stands_out_from_its_ground(home: str, browse: Open, theme: str) -> None:
    page = browse(f"{home}/estimators?run=a&run=c&theme={theme}")
    looked, pale = page.evaluate(PALE_WORDS)
    assert looked > 100
    assert pale == []


# The words that have less contrast than WCAG's AA asks for, and how many words were looked at.
PALE_WORDS = """() => {
  const brush = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const seen = (colour) => {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = brush.getImageData(0, 0, 1, 1).data;
    return { rgb: [red, green, blue], alpha: alpha / 255 };
  };
  const over = (below, { rgb, alpha }) => below.map((value, at) => value * (1 - alpha) + rgb[at] * alpha);
  const ground = (each) => {
    const behind = [];
    for (let at = each; at; at = at.parentElement) behind.unshift(seen(getComputedStyle(at).backgroundColor));
    return behind.reduce(over, [255, 255, 255]);
  };
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => rgb.map((value) => linear(value / 255))
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0.05);
  const worded = (each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const words = [...document.querySelectorAll('body *')].filter((each) =>
    worded(each) && !each.closest(':disabled') && each.checkVisibility({ opacityProperty: true, visibilityProperty: true }));
  const pale = words.filter((each) => {
    const drawn = each instanceof SVGElement;
    const back = ground(drawn ? each.closest('div') : each);
    const front = over(back, seen(drawn ? getComputedStyle(each).fill : getComputedStyle(each).color));
    const [dark, bright] = [light(back), light(front)].sort((a, b) => a - b);
    return bright / dark < 4.5;
  });
  return [words.length, pale.map((each) => each.textContent.trim())];
}"""


def test_the_tab_key_begins_at_the_way_past_the_runs(home: str, browse: Open) -> None:
    page = browse(f"{home}/findings?run=a")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the charts"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_what_only_curves_listen_to_is_off_where_there_are_none(home: str, browse: Open) -> None:
    page = browse(f"{home}/dynamics?run=a")  # a run without experts
    assert page.is_disabled("[data-tool=x]")
    assert page.is_disabled("[data-tool=smooth]")
    assert page.is_enabled("[data-tool=theme]")
    page.click("[data-tab=estimators]")
    ready(page)
    assert page.is_enabled("[data-tool=x]")


@pytest.mark.usefixtures("real")
def test_nothing_scrolls_sideways_on_a_narrow_screen(home: str, browse: Open) -> None:
    page = browse(f"{home}/?run={LONG}&run=deep/b", size=(390, 844))
    for tab in TABS:
        page.click(f"[data-tab={tab}]")
        ready(page, tab)
        assert page.evaluate("document.documentElement.scrollWidth") == 390, tab
        width = page.evaluate(
            "Math.max(0, ...[...document.querySelectorAll('.card')].map(card =>"
            " card.getBoundingClientRect().right))"
        )
        assert width <= 390


def test_on_a_narrow_screen_the_picker_is_a_drawer(home: str, browse: Open) -> None:
    page = browse(f"{home}/estimators?run=a", size=(390, 844))
    assert not page.is_visible("#run-search")
    assert not page.is_visible("#tools")
    page.click("#open-picker")
    page.wait_for_selector("#run-search", state="visible")
    page.check("[data-run=c] input")
    settle(page, "run=a&run=c")
    page.keyboard.press("Escape")
    page.wait_for_selector("#run-search", state="hidden")
    page.click("text=Display")
    assert page.is_visible("[data-tool=smooth]")
    columns = page.evaluate(
        "new Set([...document.querySelectorAll('.card')].map(card =>"
        " card.getBoundingClientRect().left)).size"
    )
    assert columns == 1


@pytest.mark.usefixtures("real")
def test_every_control_of_every_tab_has_a_name_and_headings_are_in_order(
    home: str, browse: Open
) -> None:
    page = browse(f"{home}/?run=a&run=deep/b")
    for tab in TABS:
        page.click(f"[data-tab={tab}]")
        ready(page, tab)
        tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        nameless = [
            node["role"]["value"]
            for node in tree
            if not node.get("ignored")
            and node.get("role", {}).get("value") in NAMED
            and not node.get("name", {}).get("value")
        ]
        assert nameless == [], tab
        levels = page.evaluate(
            """[...document.querySelectorAll('main h1, main h2, main h3, main [role=heading]')]
                 .filter(each => each.offsetParent).map(each => Number(each.ariaLevel ?? each.tagName[1]))"""
        )
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), (
            tab,
            levels,
        )
    assert {
        urlsplit(url).netloc for url in page.asked if not url.startswith(("blob:", "data:"))
    } == {urlsplit(home).netloc}


def test_modules_are_small_and_none_builds_markup_from_text() -> None:
    static = Path(create_app.__code__.co_filename).parent / "static"
    modules = sorted(static.glob("*.js"))
    assert len(modules) > 10
    for module in modules:
        text = module.read_text()
        assert len(text.splitlines()) <= 300, module.name
        assert text.startswith("/**"), module.name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        ), module.name
    page = (static / "index.html").read_text()
    assert not re.search(r"\son\w+=|<script>|style=|https?://", page)
    preloaded = set(re.findall(r'modulepreload" href="/static/([\w/]+\.js)"', page))
    assert {module.name for module in modules} <= preloaded
    assert json.dumps(sorted(preloaded)).count("charts/") >= 1
