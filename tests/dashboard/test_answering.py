"""A tick carries what is new and nothing else; put together, ticks are the whole view."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.dashboard import answering
from gradiometer.dashboard import consultant as consulting
from gradiometer.dashboard.answering import answer, encode
from gradiometer.dashboard.ask import Ask, ask_of
from gradiometer.dashboard.consultant import Consultant
from gradiometer.dashboard.desk import Desk
from gradiometer.dashboard.points import points_of
from gradiometer.dashboard.shape import Chart, Fact, Line, Points, View
from gradiometer.dashboard.shelf import Shelf
from gradiometer.errors import UnknownName, UsageError
from gradiometer.records import Row
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

NAMES = ("fast", "slow")


def small(desk: Desk) -> View:
    """Two series of a run, one of them measured rarely, a computed line, and a fact."""
    run = desk.focus
    lines = [desk.line(run, name, name) for name in NAMES if name in run.names]
    lines.append(desk.grown(lambda after: twice(desk, after)))
    facts = [Fact(group="run", name="half", values={run.id: str(len(run.log.series("fast")[0]) // 100)})]
    chart = Chart(id="c", kind="lines", title="C", lines=lines)
    return View(view="small", title="Small", runs=[run.id], charts=[chart], facts=facts)


def twice(desk: Desk, after: int | None) -> Line:
    """A line that is worked out of another."""
    fast = points_of(desk.focus.log, "fast", desk.ask, after=after)
    points = Points(steps=fast.steps, values=[2 * value for value in fast.values])  # type: ignore[operator]
    return Line(run="r", name="twice", label="twice", points=points)


class Bench:
    """A run that is written while it is looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer = Writer(folder / "r", facts={"started": "then"})
        self.shelf = Shelf(folder)
        self.consultant = Consultant(self.shelf)

    def put(self, *steps: int, slow: bool = False) -> None:
        for step in steps:
            self.writer.put(Row(step=step, wall_time=float(step), values={"slow" if slow else "fast": float(step)}))
        self.writer.flush()

    def ask(self, after: str = "", **more: Any) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(
            encode(answer(self.shelf, self.consultant, "small", Ask(runs=("r",), after=after, **more)))
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
    return {line["name"]: line["points"]["steps"] for chart in view["charts"] for line in chart["lines"]}


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


def test_an_unknown_view_names_those_there_are(bench: Bench) -> None:
    with pytest.raises(UnknownName, match="overview"):
        answer(bench.shelf, bench.consultant, "overvew", Ask(runs=("r",)))


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
    ask = ask_of(
        [("run", "a"), ("run", "b"), ("run", "a"), ("from", "5"), ("layer", "x"), ("metric", "m"), ("metric", "n")]
    )
    assert ask.runs == ("a", "b")
    assert ask.first == 5
    assert ask.option("layer") == "x"
    assert ask.every("metric") == ("m", "n")
    for pairs in ([("from", "1.5")], [("x", "metric:")], [("most", "1")], [("run", str(i)) for i in range(300)]):
        with pytest.raises(UsageError):
            ask_of(pairs)


def test_nan_travels_as_a_word() -> None:
    assert encode({"a": float("nan"), "b": [float("inf")]}) == b'{"a": "NaN", "b": ["Infinity"]}'
    assert encode({"a": np.float64(2.0), "b": (1, 2)}) == b'{"a":2.0,"b":[1,2]}'


def test_the_doctor_is_not_asked_twice_about_the_same_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    diagnose = consulting.diagnose
    monkeypatch.setattr(
        consulting, "diagnose", lambda run, **how: asked.append(run.newest_step) or diagnose(run, **how)
    )
    one = bench.consultant.opinion("r")
    assert bench.consultant.opinion("r") is one
    bench.put(7)
    assert bench.consultant.opinion("r") is one, "a changed run is left alone for some seconds"
    monkeypatch.setattr(consulting.time, "monotonic", lambda: one.until + 1)
    assert bench.consultant.opinion("r").step == 7
    assert asked == [4, 7]


def test_who_cannot_wait_is_told_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()
    diagnose = consulting.diagnose

    def slowly(run: Any, **how: Any) -> Any:
        assert going.wait(20)
        return diagnose(run, **how)

    monkeypatch.setattr(consulting, "diagnose", slowly)
    hasty = Consultant(bench.shelf, patience=0.01)
    first = hasty.opinion("r")
    assert first.diagnosis.verdict == consulting.READING
    assert first.step is None
    assert hasty.late() == set()
    going.set()
    hasty.close()
    assert hasty.late() == {"r"}
    assert hasty.late() == set(), "each is named once"
    assert hasty.opinion("r").step == 4


def test_a_colour_stays_while_runs_come(tmp_path: Path) -> None:
    for name in ("b", "c"):
        with Writer(tmp_path / name) as writer:
            writer.put(Row(step=0, wall_time=0.0, values={"v": 1.0}))
    shelf = Shelf(tmp_path)
    before = {card.id: card.colour for card in shelf.cards()}
    with Writer(tmp_path / "a") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"v": 1.0}))
    shelf._look_again = 0.0
    after = {card.id: card.colour for card in shelf.cards()}
    assert set(after) == {"a", "b", "c"}
    assert {id: after[id] for id in before} == before
    assert len(set(after.values())) == 3


def test_reading_leaves_a_finished_run_as_one_file(bench: Bench) -> None:
    bench.ask()
    bench.writer.close()
    bench.ask()
    assert sorted(path.name for path in (bench.folder / "r").iterdir() if path.name.startswith("run.db")) == ["run.db"]
    with load(bench.folder / "r") as run:
        assert run.newest_step == 4
