"""A tick carries what is new and nothing else; put together, ticks are the whole view."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.charts.model import Chart, Line, Points
from gradiometer.dashboard import answer as answering
from gradiometer.dashboard import diagnoses as diagnosing
from gradiometer.dashboard.answer import answer, encode
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import Query, parse_query
from gradiometer.dashboard.request import ViewRequest, points_of
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.shape import Fact, View
from gradiometer.errors import UnknownName, UsageError
from gradiometer.records import Row
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

NAMES = ("fast", "slow")


def small(request: ViewRequest) -> View:
    """Two series of a run, one of them measured rarely, a computed line, and a fact."""
    run = request.focus
    lines = [request.line(run, name, name) for name in NAMES if name in run.names]
    lines.append(request.grown(lambda after: twice(request, after)))
    facts = [
        Fact(group="run", name="half", values={run.id: str(len(run.log.series("fast")[0]) // 100)})
    ]
    chart = Chart(id="c", kind="lines", title="C", lines=lines)
    return View(view="small", title="Small", runs=[run.id], charts=[chart], facts=facts)


def twice(request: ViewRequest, after: int | None) -> Line:
    """A line that is worked out of another."""
    fast = points_of(request.focus.log, "fast", request.query, after=after)
    points = Points(steps=fast.steps, values=[2 * value for value in fast.values])  # type: ignore[operator]
    return Line(run="r", name="twice", label="twice", points=points)


class Bench:
    """A run that is written while it is looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = Writer(folder / "r", facts={"started": "then"})
        self.index = RunIndex(folder)
        self.diagnoses = Diagnoses(self.index)

    def put(self, *steps: int, slow: bool = False) -> None:
        for step in steps:
            self.writer.put(
                Row(
                    step=step,
                    wall_time=float(step),
                    values={"slow" if slow else "fast": float(step)},
                )
            )
        self.writer.flush()

    def ask(self, after: str = "", **more: Any) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(
            encode(
                answer(self.index, self.diagnoses, "small", Query(runs=("r",), after=after, **more))
            )
        )
        return told


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(answering.VIEWS, "small", small)
    bench = Bench(tmp_path)
    bench.put(*range(5))
    bench.put(0, slow=True)
    yield bench
    bench.writer.close()


def steps_of(view: dict[str, Any]) -> dict[str, list[int]]:
    return {
        line["name"]: line["points"]["steps"] for chart in view["charts"] for line in chart["lines"]
    }


def test_a_tick_holds_only_new_points(bench: Bench) -> None:
    first = bench.ask()
    assert steps_of(first) == {"fast": [0, 1, 2, 3, 4], "slow": [0], "twice": [0, 1, 2, 3, 4]}
    bench.put(5, 6)
    tick = bench.ask(first["cursor"])
    assert tick["delta"] is True
    assert steps_of(tick) == {"fast": [5, 6], "twice": [5, 6]}
    assert tick["facts"] == []
    assert tick["parts"] == []


def test_nothing_new_is_nothing(bench: Bench) -> None:
    first = bench.ask()
    tick = bench.ask(first["cursor"])
    assert tick["delta"] is True
    assert tick["charts"] == []
    assert tick["cursor"] == first["cursor"]


def test_a_series_that_lags_behind_is_not_missed(bench: Bench) -> None:
    first = bench.ask()
    bench.put(5, 6)
    second = bench.ask(first["cursor"])
    bench.put(3, slow=True)  # logged late, for a step that the other series has long passed
    third = bench.ask(second["cursor"])
    assert steps_of(third) == {"slow": [3]}


def test_ticks_put_together_are_the_whole_view(bench: Bench) -> None:
    view = bench.ask()
    have = {name: list(steps) for name, steps in steps_of(view).items()}
    cursor, sent = view["cursor"], 5
    rng = np.random.default_rng(0)
    for _ in range(12):
        more = int(rng.integers(0, 4))
        bench.put(*range(sent, sent + more))
        if rng.random() < 0.5:
            bench.put(sent + more, slow=True)
        sent += more + 1
        tick = bench.ask(cursor)
        assert tick["delta"]
        for name, steps in steps_of(tick).items():
            have[name] += steps
        cursor = tick["cursor"]
    assert have == steps_of(bench.ask())


def test_a_new_series_sends_the_whole_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(answering.VIEWS, "small", small)
    bench = Bench(tmp_path)
    bench.put(0, 1)
    first = bench.ask()
    bench.put(2, slow=True)
    second = bench.ask(first["cursor"])
    bench.writer.close()
    assert second["delta"] is False
    assert steps_of(second) == {"fast": [0, 1], "slow": [2], "twice": [0, 1]}


def test_a_resumed_run_is_sent_whole_though_its_layout_is_the_same(bench: Bench) -> None:
    first = bench.ask()
    bench.writer.close()
    bench.writer = Writer(bench.folder / "r", resume=2)
    bench.put(3, 4, 5)
    second = bench.ask(first["cursor"])
    assert second["delta"] is False
    assert steps_of(second)["fast"] == [0, 1, 2, 3, 4, 5]


def test_words_that_changed_come_with_the_tick(bench: Bench) -> None:
    first = bench.ask()
    bench.put(*range(5, 120))
    tick = bench.ask(first["cursor"])
    assert tick["delta"] is True
    assert "facts" in tick["parts"]
    assert tick["facts"][0]["values"] == {"r": "1"}


def folded(request: ViewRequest) -> View:
    """One chart that is open, and one in a section that is closed until it is wanted."""
    run = request.focus
    charts = [
        Chart(
            id=name,
            kind="lines",
            title=name,
            section=name,
            lines=[request.line(run, name, name)],
            fold=name == "slow",
        )
        for name in NAMES
    ]
    return View(view="small", title="Small", runs=[run.id], charts=charts)


def test_a_closed_section_is_not_read_and_comes_whole_when_it_is_opened(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(answering.VIEWS, "small", folded)
    bench.put(5, slow=True)
    read: list[str] = []
    inner = ViewRequest._points

    def counting(self: ViewRequest, run: Any, name: str, *rest: Any) -> Points:
        read.append(name)
        return inner(self, run, name, *rest)

    monkeypatch.setattr(ViewRequest, "_points", counting)
    fast, slow = bench.ask(open=("",))["charts"]
    assert read == ["fast"]
    assert (fast["later"], slow["later"]) == (False, True)
    assert fast["lines"][0]["points"]["steps"] == [0, 1, 2, 3, 4]
    assert slow["lines"][0]["points"]["steps"] == []
    closed = bench.ask(open=("",))["cursor"]
    opened = bench.ask(after=closed, open=("slow",))
    assert not opened["delta"]
    assert opened["charts"][1]["lines"][0]["points"]["steps"][-1] == 5
    assert opened["charts"] == bench.ask()["charts"], "without `open` the JSON is complete"
    bench.put(6, slow=True)
    tick = bench.ask(after=opened["cursor"], open=("slow",))
    assert [line["points"]["steps"] for chart in tick["charts"] for line in chart["lines"]] == [[6]]


def test_an_unknown_view_names_those_there_are(bench: Bench) -> None:
    with pytest.raises(UnknownName, match="overview"):
        answer(bench.index, bench.diagnoses, "overvew", Query(runs=("r",)))


def test_x_can_be_the_time_or_a_metric(bench: Bench) -> None:
    by_time = bench.ask(x="wall")["charts"][0]["lines"][0]["points"]
    assert by_time["x"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    relative = bench.ask(x="relative", first=2)["charts"][0]["lines"][0]["points"]
    assert relative["x"] == [2.0, 3.0, 4.0]
    by_metric = bench.ask(x="metric:slow")["charts"][0]["lines"][0]["points"]
    assert by_metric["x"] == [0.0] * 5
    nowhere = bench.ask(x="metric:none")["charts"][0]["lines"][0]["points"]
    assert nowhere["x"] == ["NaN"] * 5


def test_a_question_is_read_from_a_query_string() -> None:
    query = parse_query(
        [
            ("run", "a"),
            ("run", "b"),
            ("run", "a"),
            ("from", "5"),
            ("layer", "x"),
            ("metric", "m"),
            ("metric", "n"),
        ]
    )
    assert query.runs == ("a", "b")
    assert query.first == 5
    assert query.option("layer") == "x"
    assert query.every("metric") == ("m", "n")
    for pairs in (
        [("from", "1.5")],
        [("x", "metric:")],
        [("most", "1")],
        [("run", str(i)) for i in range(300)],
    ):
        with pytest.raises(UsageError):
            parse_query(pairs)


def test_nan_travels_as_a_word() -> None:
    assert encode({"a": float("nan"), "b": [float("inf")]}) == b'{"a": "NaN", "b": ["Infinity"]}'
    assert encode({"a": np.float64(2.0), "b": (1, 2)}) == b'{"a":2.0,"b":[1,2]}'


def test_the_doctor_is_not_asked_twice_about_the_same_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    diagnose = diagnosing.diagnose
    monkeypatch.setattr(
        diagnosing,
        "diagnose",
        lambda run, **how: asked.append(run.newest_step) or diagnose(run, **how),
    )
    one = bench.diagnoses.latest("r")
    assert bench.diagnoses.latest("r") is one
    bench.put(7)
    assert bench.diagnoses.latest("r") is one, "a changed run is left alone for some seconds"
    monkeypatch.setattr(diagnosing.time, "monotonic", lambda: one.until + 1)
    assert bench.diagnoses.latest("r").step == 7
    assert asked == [4, 7]


def test_who_cannot_wait_is_told_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()
    diagnose = diagnosing.diagnose

    def slowly(run: Any, **how: Any) -> Any:
        assert going.wait(20)
        return diagnose(run, **how)

    monkeypatch.setattr(diagnosing, "diagnose", slowly)
    hasty = Diagnoses(bench.index, patience=0.01)
    first = hasty.latest("r")
    assert first.diagnosis.verdict == diagnosing.READING
    assert first.step is None
    assert hasty.late() == set()
    going.set()
    hasty.close()
    assert hasty.late() == {"r"}
    assert hasty.late() == set(), "each is named once"
    assert hasty.latest("r").step == 4


def test_a_colour_stays_while_runs_come(tmp_path: Path) -> None:
    for name in ("b", "c"):
        with Writer(tmp_path / name) as writer:
            writer.put(Row(step=0, wall_time=0.0, values={"v": 1.0}))
    index = RunIndex(tmp_path)
    before = {card.id: card.colour for card in index.cards()}
    with Writer(tmp_path / "a") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"v": 1.0}))
    index._look_again = 0.0
    after = {card.id: card.colour for card in index.cards()}
    assert set(after) == {"a", "b", "c"}
    assert {id: after[id] for id in before} == before
    assert len(set(after.values())) == 3


def test_reading_leaves_a_finished_run_as_one_file(bench: Bench) -> None:
    bench.ask()
    bench.writer.close()
    bench.ask()
    assert sorted(
        path.name for path in (bench.folder / "r").iterdir() if path.name.startswith("run.db")
    ) == ["run.db"]
    with load(bench.folder / "r") as run:
        assert run.newest_step == 4
