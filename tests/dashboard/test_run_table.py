"""The table of runs: answered at once, filled in by others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gradiometer.dashboard import run_table
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.dashboard.run_table import RunTable, RunTableAnswer
from gradiometer.dashboard.survey import SurveyProcess, SurveyTooLong, answer_to, spark
from gradiometer.records import Event, Row
from gradiometer.store.run_notes import RunNotes, read_notes, write_notes
from gradiometer.store.writer import Writer


def write_run(folder: Path, *, lr: float = 1e-3, steps: int = 40, broken: bool = False) -> None:
    facts = {"started": "2026-01-01T00:00:00", "config": {"lr": lr, "gamma": 0.99}}
    with Writer(folder, facts=facts) as writer:
        for step in range(steps):
            loss = float("nan") if broken and step > 20 else 1.0
            values = {"reward": float(step), "loss": loss, "grad/all/norm/raw": loss}
            writer.put(Row(step=step, wall_time=1e9 + 2 * step, values=values))
    old = time.time() - 1000
    os.utime(folder / "run.db", (old, old))


class DirectSurvey:
    """Answers in this process, where a process of its own takes seconds to start."""

    asked: ClassVar[list[tuple[str, str]]] = []

    def ask(self, question: Mapping[str, str], seconds: float) -> dict[str, Any]:
        self.asked.append((question["what"], Path(question["path"]).name))
        if Path(question["path"]).name == "stuck":
            raise SurveyTooLong("it was not read within 1 seconds")
        return answer_to(question)

    def kill(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunTable]]:
    monkeypatch.setattr(run_table, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(run_table, "FIRST_SECONDS", 0.0)
    DirectSurvey.asked = []
    made: list[RunTable] = []

    def make(**given: Any) -> RunTable:
        made.append(RunTable(RunIndex(tmp_path), surveyor=DirectSurvey, **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


def filled(table: RunTable) -> RunTableAnswer:
    until = time.monotonic() + 60
    while table.answer().unread:
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.1)
    return table.answer()


def test_rows_say_state_outcome_status_and_the_settings_that_differ(
    table: Callable[..., RunTable], tmp_path: Path
) -> None:
    write_run(tmp_path / "sweep" / "good")
    write_run(tmp_path / "sweep" / "bad", lr=1.0, broken=True)
    write_run(tmp_path / "stuck")
    with Writer(tmp_path / "sweep" / "bad", resume=40) as writer:
        writer.put(Event(step=39, kind="exception", message="ValueError: no", detail={}))
    first = table().answer()
    assert {row.state for row in first.rows} == {""}  # nobody waits for the doctor
    told = filled(table())
    rows = {row.id: row for row in told.rows}
    good, bad, stuck = rows["sweep/good"], rows["sweep/bad"], rows["stuck"]
    assert (good.state, good.status, good.folder) == ("healthy", "finished", "sweep")
    assert (good.newest_step, good.seconds) == (39, 78.0)
    assert good.outcome is not None
    assert (good.outcome.series, good.outcome.lower) == ("reward", False)
    assert good.outcome.spark[0] == 0
    assert good.outcome.spark[-1] == 99
    assert (bad.state, bad.ended) == ("broken", "ValueError: no")
    assert stuck.state == "unreadable"
    assert "not read within" in stuck.verdict
    assert (good.settings["lr"], bad.settings["lr"]) == ("0.001", "1.0")
    assert told.shared["gamma"] == "0.99"
    assert "gamma" not in good.settings


def test_the_answer_that_says_all_is_read_knows_what_the_runs_share(
    table: Callable[..., RunTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_table, "REFRESH_SECONDS", 3600.0)  # no second look at the files
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", lr=1.0)
    runs = table()
    until = time.monotonic() + 60
    while (told := runs.answer()).unread:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert told.shared["gamma"] == "0.99"
    assert [set(row.settings) & {"gamma", "lr"} for row in told.rows] == [{"lr"}, {"lr"}]


def test_a_cursor_gets_what_changed_and_nothing_is_read_twice(
    table: Callable[..., RunTable], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name)
    runs = table()
    told = filled(runs)
    assert runs.answer(told.cursor).rows == []
    write_notes(tmp_path / "a", RunNotes(tags=("baseline",), name="the first"))
    time.sleep(0.1)
    changed = runs.answer(told.cursor)
    assert not changed.whole
    assert [(row.id, row.name, row.tags) for row in changed.rows] == [
        ("a", "the first", ("baseline",))
    ]
    assert sorted(DirectSurvey.asked) == [
        (what, name) for what in ("card", "state") for name in ("a", "b")
    ]


def test_a_second_server_knows_what_the_first_has_read(
    table: Callable[..., RunTable], tmp_path: Path
) -> None:
    write_run(tmp_path / "runs" / "a")
    cache = tmp_path / "cache"
    first = table(cache=cache)
    filled(first)
    first.close()
    assert [row.state for row in table(cache=cache).answer().rows] == ["healthy"]
    with Writer(tmp_path / "runs" / "a", resume=40) as writer:
        writer.put(Row(step=99, wall_time=1e9, values={"reward": 1.0}))
    DirectSurvey.asked = []
    filled(again := table(cache=cache))
    time.sleep(0.2)
    again.answer()
    assert ("state", "a") in DirectSurvey.asked  # its file is another one


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended_and_replaced(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    question = {"what": "card", "path": str(tmp_path / "a"), "root": str(tmp_path)}
    reader = SurveyProcess()
    try:
        assert reader.ask(question, 60)["settings"]["lr"] == "0.001"
        assert reader._process is not None
        os.kill(reader._process.pid, signal.SIGSTOP)  # it answers nothing from here on
        with pytest.raises(SurveyTooLong):
            reader.ask(question, 0.05)
        assert reader.ask(question, 60)["settings"]["lr"] == "0.001"
    finally:
        reader.close()


def test_a_sparkline_keeps_gaps_and_extremes() -> None:
    import numpy as np

    assert spark(np.array([1.0, np.nan, 3.0])) == [0, None, 99]
    assert spark(np.full(3, np.nan)) == [None, None, None]
    assert len(spark(np.arange(1e5))) == 32


def test_notes_lie_beside_the_run_and_bad_ones_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    before = (tmp_path / "a" / "run.db").read_bytes()
    write_notes(tmp_path / "a", RunNotes(note="two\nlines", archived=True))
    assert read_notes(tmp_path / "a") == RunNotes(note="two\nlines", archived=True)
    assert (tmp_path / "a" / "run.db").read_bytes() == before
    (tmp_path / "a" / "gradiometer.json").write_text("[1, 2")
    assert read_notes(tmp_path / "a") == RunNotes()
    log = tmp_path / "log.csv"
    log.write_text("step,loss\n1,2\n")
    write_notes(log, RunNotes(tags=("x",)))
    assert read_notes(log).tags == ("x",)
    write_notes(log, RunNotes())
    assert not (tmp_path / "log.csv.gradiometer.json").exists()
