"""A short soak, and that its checks can fail."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.soak_checks import complaints, flat
from benchmarks.soak_counting import (
    Comparison,
    Ledger,
    Tally,
    count_events,
    count_jsonl,
    count_run,
    seconds_by_life,
)

from gradiometer.records import Row
from gradiometer.store.sinks import Fanout, Start, chosen
from gradiometer.store.writer import Writer

ROOT = Path(__file__).parents[1]
STEPS = 50
START = 1.7e9
MIB = 2.0**20


def soaked(out: Path, *options: str) -> dict[str, Any]:
    """What a soak printed."""
    command = [sys.executable, "-m", "benchmarks.soak", "--json", "--out", str(out), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.stderr == ""
    said: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if all(check["holds"] for check in said["checks"]) else 1)
    return said


@pytest.mark.slow
def test_a_training_that_is_killed_loses_nothing_that_may_not_be_lost(tmp_path: Path) -> None:
    said = soaked(
        tmp_path / "soak", "--minutes", "0.03", "--rate", "60", "--kills", "1", "--clients", "3"
    )
    found = {check["name"]: check for check in said["checks"]}
    # Memory takes minutes to show a slope: the long form below judges it.
    memory = {name for name in found if name.startswith("RSS of the ")}
    assert [check for name, check in found.items() if not check["holds"] | (name in memory)] == []
    assert len(memory) == 3
    assert found["points in run.db"]["numbers"]["points"] > 1_000
    assert found["kill -9"]["numbers"] == {"kills": 1, "training": 1}
    assert all(kill["intact"] for kill in said["kills"])


@pytest.mark.slow
@pytest.mark.proof
def test_two_minutes_with_four_kills_lose_nothing_that_may_not_be_lost(tmp_path: Path) -> None:
    said = soaked(tmp_path / "soak", "--minutes", "2", "--kills", "4")
    assert [check for check in said["checks"] if not check["holds"]] == []
    found = {check["name"]: check["numbers"] for check in said["checks"]}
    assert found["points in run.db"]["points"] > 10_000
    assert found["kill -9"]["training"] >= 1
    assert all(kill["intact"] for kill in said["kills"])


@pytest.fixture
def handed_over(tmp_path: Path) -> tuple[Path, Tally, Tally]:
    """A run with two sinks, and what its ledger says of it, in 64 bits and in 32."""
    run = tmp_path / "run"
    ledger = Ledger(tmp_path / "ledger.bin")
    start = Start(run=run)
    writer = Fanout(Writer(run), chosen(["jsonl", "tensorboard"], start), start)
    for step in range(STEPS):
        values = {
            "reward": step / 3,
            "loss": -float(step),
            "odd": (np.nan, np.inf, -np.inf, 1e300)[step % 4],
        }
        ledger.note(step, START + step / 10, values)
        writer.put(Row(step=step, wall_time=START + step / 10, values=values))
    with pytest.warns(UserWarning, match="a number beyond 3.4e38"):
        writer.close()
    entries = Ledger.read(tmp_path / "ledger.bin")
    return run, Tally.of_entries([(-1, entries)]), Tally.of_entries([(-1, entries)], short=True)


def test_what_was_handed_over_is_found_again_in_the_run_and_in_both_sinks(
    handed_over: tuple[Path, Tally, Tally],
) -> None:
    run, long, short = handed_over
    found = [
        (long, count_run(run)),
        (long, count_jsonl(run / "metrics.jsonl")),
        (short, count_events(run / "tensorboard")),
    ]
    for expected, counted in found:
        comparison = Comparison.of(expected, counted)
        assert (comparison.expected, comparison.missing, comparison.surplus) == (3 * STEPS, 0, 0)
        assert comparison.wrong_steps.tolist() == []


@pytest.mark.parametrize(
    ("change", "missing", "surplus"),
    [
        ("DELETE FROM points WHERE step = 40 AND series_id = 1", 1, 0),
        ("UPDATE points SET value = value + 1e-9 WHERE step = 40 AND series_id = 1", 0, 0),
        ("INSERT INTO points VALUES (99, 40, 1.0)", 0, 1),
    ],
)
def test_a_point_that_was_removed_changed_or_added_is_noticed(
    handed_over: tuple[Path, Tally, Tally], change: str, missing: int, surplus: int
) -> None:
    run, expected, _ = handed_over
    with closing(sqlite3.connect(run / "run.db", isolation_level=None)) as db:
        db.execute("INSERT INTO series VALUES (99, 'another')")
        db.execute(change)
    comparison = Comparison.of(expected, count_run(run))
    assert (comparison.missing, comparison.surplus, comparison.wrong_steps.tolist()) == (
        missing,
        surplus,
        [40],
    )
    assert comparison.seconds_lost(expected) == pytest.approx(1.0)  # from step 39 to step 49


def test_a_line_or_an_event_that_is_gone_is_noticed(handed_over: tuple[Path, Tally, Tally]) -> None:
    run, long, short = handed_over
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert Comparison.of(long, count_jsonl(run / "metrics.jsonl")).wrong_steps.tolist() == [
        STEPS - 1
    ]
    (file,) = (run / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert Comparison.of(short, count_events(run / "tensorboard")).missing == 3


def test_what_a_resume_took_back_is_not_asked_for_and_each_kill_answers_for_its_own_steps(
    tmp_path: Path,
) -> None:
    for life, steps in enumerate((range(10), range(6, 12))):
        ledger = Ledger(tmp_path / f"{life}.bin")
        for step in steps:
            ledger.note(step, START + 100 * life + step / 10, {"a": float(life), "b": 1.0})
    lives = [(-1, Ledger.read(tmp_path / "0.bin")), (5, Ledger.read(tmp_path / "1.bin"))]
    tally = Tally.of_entries(lives)
    assert (tally.newest, tally.points.tolist()) == (11, [2] * 12)
    wrong = np.array([4, 5, 6, 7, 8])
    assert seconds_by_life(lives, wrong, 0.1) == {0: pytest.approx(0.2), 1: pytest.approx(0.3)}


def test_what_a_kill_in_the_middle_of_a_resume_left_behind_is_gone_after_the_next(
    handed_over: tuple[Path, Tally, Tally],
) -> None:
    run, _, _ = handed_over
    (run / ".metrics.jsonl.partial").write_text('{"step": 0, "rew')
    start = Start(run=run, resume=9)
    writer = Fanout(None, chosen(["jsonl"], start), start)
    writer.put(Row(step=10, wall_time=START, values={"reward": 1.0}))
    writer.close()
    assert not list(run.glob(".*"))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(11))


def test_memory_that_leaks_is_noticed_and_memory_that_is_only_restless_is_not() -> None:
    rng = np.random.default_rng(0)
    times = np.arange(900.0)
    restless = 300 * MIB + rng.normal(0, 2 * MIB, len(times))
    leaking = restless + times * 0.05 * MIB  # 180 MiB an hour
    assert flat("training", list(zip(times, restless, strict=True))).holds
    assert not flat("training", list(zip(times, leaking, strict=True))).holds
    assert not flat("training", []).holds


def test_a_lock_error_is_a_complaint_and_a_finding_is_not() -> None:
    text = (
        "gradiometer: warn noise-dominated since step 3: too noisy\nsqlite3.OperationalError:"
        " database is locked\n"
    )
    assert complaints(text) == ["sqlite3.OperationalError: database is locked"]
