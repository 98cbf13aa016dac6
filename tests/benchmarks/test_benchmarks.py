"""Every benchmark still runs, and what it gives becomes a row of the page that says whether its
target is met."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from benchmarks import __main__ as command
from benchmarks import relay, timing
from benchmarks.page import Result, about, load, merged, page, save
from benchmarks.rows import MIN_ROUNDS, Row, Scale, counted, measured, three_digits

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
TOGETHER = (
    ("meter", "store", "doctor"),
    ("reductions", "alternatives", "trainers", "commands", "experts"),
    ("memory", "anatomy", "replicates", "distributed", "growth", "parsers"),
    ("integrations", "listening"),
    ("dashboard", "home"),
)


def result(part: str, *rows: Row, error: str = "") -> Result:
    return Result(
        part=part,
        rows=rows,
        seconds=60.0,
        error=error,
        machine={"cores": "2", "date": "2026-01-01"},
    )


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            parts,
            marks=pytest.mark.slow if parts == TOGETHER[0] else pytest.mark.proof,
            id=parts[0],
        )
        for parts in TOGETHER
    ],
)
def test_every_part_still_runs_and_yields_its_rows(parts: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-m", "benchmarks", *parts, "--quick", "--json", str(out)]
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = load(out)
    assert [each.part for each in found] == list(parts)
    for each in found:
        names = [row.name for row in each.rows]
        assert names
        assert len(set(names)) == len(names)
        assert all(math.isfinite(row.value) for row in each.rows), each.rows
        if each.part != "reductions":
            assert any(row.met is not None for row in each.rows), "no row has a target"


def test_the_quick_form_runs_every_part() -> None:
    assert sorted(part for parts in TOGETHER for part in parts) == sorted(command.PARTS)


def test_a_target_is_met_from_its_own_side_and_by_numbers_only() -> None:
    assert counted("bytes", 20, unit="bytes", at_most=20).met is True
    assert counted("bytes", 21, unit="bytes", at_most=20).met is False
    assert measured("speed-up", [2.9], at_least=3).met is False
    assert measured("speed-up", [3.0], at_least=3).met is True
    assert measured("speed-up", [3.0]).met is None
    assert measured("speed-up", [math.nan], at_least=3).met is False
    assert measured("speed-up", [math.nan], at_most=3).met is False


def test_a_figure_is_the_median_of_its_rounds_with_their_spread() -> None:
    row = measured("ratio", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 111.0])
    assert (row.value, row.low, row.high, row.rounds) == (6.0, 2.0, 10.0, 11)
    assert [three_digits(x) for x in (0.0123456, 1.5, 12.345, 98915.2)] == [
        "0.0123",
        "1.50",
        "12.3",
        "98,915",
    ]


def test_a_full_measurement_has_at_least_nine_rounds() -> None:
    assert Scale().rounds() == MIN_ROUNDS == 9
    assert Scale(quick=True).rounds(15) == 1
    with pytest.raises(AssertionError):
        Scale().rounds(3)


def test_candidates_take_turns_and_every_other_round_goes_backwards() -> None:
    called: list[str] = []
    taken = timing.in_turns(
        {name: lambda name=name: called.append(name) for name in "ab"},  # type: ignore[misc]
        rounds=2,
        warm_up=1,
        calls=2,
    )
    assert "".join(called) == "aabbbbaaaabb"
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 2, "b": 2}


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(relay, "time", made)
    return made


def test_two_trainings_in_turns_each_have_their_own_time(clock: Clock) -> None:
    order: list[str] = []
    meter = SimpleNamespace(
        _writer=None, _observer=SimpleNamespace(seconds=0.0), close=lambda: order.append("closed")
    )

    def step(name: str, seconds: float) -> None:
        order.append(name)
        clock.now += seconds

    def watched() -> None:
        step("watched", 1.5)
        meter._observer.seconds += 0.5

    plain, ours = relay.alternate(
        lambda: step("plain", 1.0), lambda: (watched, meter), rounds=3, steps=2
    )
    assert order == ["plain", "watched"] * 6 + ["closed"]
    assert (plain.rounds, ours.rounds, ours.hooks) == ([2.0] * 3, [3.0] * 3, [1.0] * 3)
    by_clock, in_hooks = relay.overhead_rows("x", plain, ours, at_most=0.02)
    assert (by_clock.value, by_clock.rounds, by_clock.met) == (1.5, 2, False)
    assert in_hooks.value == pytest.approx(100 / 3)


def test_two_threads_hand_over_where_they_say_so(clock: Clock) -> None:
    order: list[bool] = []

    def train(runner: relay.Runner, hand_over: object, watched: bool) -> None:
        for _ in range(3):
            order.append(watched)
            clock.now += 2.0 if watched else 1.0
            hand_over(end_round=True)  # type: ignore[operator]

    plain, ours = relay.race(train)
    assert order == [False, True] * 3
    assert (plain.rounds, ours.rounds) == ([1.0] * 3, [2.0] * 3)


def test_a_training_that_raises_in_its_thread_is_heard_of() -> None:
    def train(runner: relay.Runner, hand_over: object, watched: bool) -> None:
        if watched:
            raise ValueError("no such trainer")

    with pytest.raises(ValueError, match="no such trainer"):
        relay.race(train)


def test_the_page_names_what_is_missed_before_anything_else() -> None:
    good = measured("quick", [1.0] * 9, at_most=2)
    bad = measured("slow | steady", [4.0] * 9, at_most=2, note="why")
    text = page([result("meter", good, bad), result("store", error="OSError: full")])
    assert "1 of 2 targets are met. Missed:" in text
    missed = text.split("## Missed")[1].split("## Meter")[0]
    assert "slow | steady: **4.00 ×** (4.00 to 4.00), target ≤ 2 ×" in missed
    assert "store: failed" in missed
    assert "| quick | 1.00 × | 1.00 to 1.00 | 9 | ≤ 2 × | met |  |" in text
    assert "| slow \\| steady | 4.00 × | 4.00 to 4.00 | 9 | ≤ 2 × | **missed** | why |" in text
    assert "**This part failed**: `OSError: full`" in text
    assert about("meter").splitlines()[0] in text


def test_a_part_measured_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    old = [result("store", measured("a", [1.0])), result("meter", measured("b", [1.0]))]
    save(old, tmp_path / "rows.json")
    new = [result("meter", measured("b", [2.0]))]
    together = merged(load(tmp_path / "rows.json"), new, command.PARTS)
    assert [(each.part, each.rows[0].value) for each in together] == [
        ("meter", 2.0),
        ("store", 1.0),
    ]


@pytest.fixture
def two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scale: Scale) -> Iterator[Row]:
        yield measured("before", [1.0])
        raise OSError("disk full")

    def sound(scale: Scale) -> Iterator[Row]:
        yield measured("after", [1.0])

    for name, rows in (("broken", broken), ("sound", sound)):
        module = ModuleType(name)
        module.rows = rows  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"benchmarks.{name}", module)
    monkeypatch.setattr(command, "PARTS", ("broken", "sound"))


def test_a_part_that_fails_loses_neither_its_rows_nor_the_others(
    two_parts: None, tmp_path: Path
) -> None:
    out = tmp_path / "rows.json"
    assert command.main(["--quick", "--json", str(out)]) == 1
    broken, sound = json.loads(out.read_text())
    assert (broken["error"], [row["name"] for row in broken["rows"]]) == (
        "OSError: disk full",
        ["before"],
    )
    assert (sound["error"], [row["name"] for row in sound["rows"]]) == ("", ["after"])


@pytest.mark.parametrize("given", [["nonsense"], ["meter", "--quick", "--write", "page.md"]])
def test_a_call_that_makes_no_sense_is_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(given)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_the_page_is_what_its_rows_say_and_every_figure_has_its_rounds() -> None:
    kept = load(PAGE.with_suffix(".json"))
    assert PAGE.read_text("utf-8") == page(kept, tuple(command.PARTS)), "run `make bench`"
    assert [each.part for each in kept if each.error] == []
    for row in (row for each in kept for row in each.rows):
        assert row.rounds == 0 or row.rounds >= MIN_ROUNDS, row
    assert not any(
        place in PAGE.read_text("utf-8") for place in ("/work", "/tmp", "/home", "/root")
    )
