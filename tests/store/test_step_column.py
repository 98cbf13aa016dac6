from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.errors import GradiometerWarning
from gradiometer.store.importers import open_log
from gradiometer.store.logs import Log, number_of, runs_of
from gradiometer.store.step_column import STEP_KEYS, axis_of, step_column, whole


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (12, 12),
        (12.0, 12),
        ("12", 12),
        ("12.0", 12),
        ("12/600", 12),
        (" 12 / 600 ", 12),
        ("1,200", 1200),
        ("1e5", 100_000),
        ("3k", 3000),
        ("1.5M", 1_500_000),
        (0.25, None),
        ("x", None),
        (True, None),
        (None, None),
        (2**63, None),
        ("inf", None),
        ("0:11:19", None),
    ],
)
def test_a_step_is_read_however_it_is_spelled(text: Any, step: int | None) -> None:
    assert whole(text) == step


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.5", 0.5),
        ("1,234.5", 1234.5),
        ("85%", 0.85),
        ("3.2k", 3200.0),
        ("12.5 GiB", 12.5),
        ("39s", 39.0),
        ("-inf", -np.inf),
        ("2d 6h", None),
        ("0:11:19", None),
        ("abc", None),
        ("", None),
        ([1], None),
    ],
)
def test_a_number_is_read_however_it_is_spelled(text: Any, number: float | None) -> None:
    found = number_of(text)
    assert found is None if number is None else found == pytest.approx(number)


def test_every_listed_name_counts_the_steps_of_a_log_that_has_it() -> None:
    for name in STEP_KEYS:
        for spelled in (name, name.upper(), name.replace("_", " ") if name != "_step" else name):
            assert step_column({"loss": [1.0, 2.0], spelled: [3, 4]}, 2) == spelled, spelled
    assert axis_of("TotalEnvInteracts") == axis_of("Total Timesteps") == "environment steps"


def test_a_column_that_does_not_count_is_not_taken_for_its_name() -> None:
    rows = 40
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 200, size=rows).tolist()
    episodes, reward = list(range(rows)), rng.normal(size=rows).tolist()
    own = {"steps": lengths, "episode": episodes, "reward": reward}
    assert step_column(own, rows) == "episode"  # steps are the lengths of the episodes
    constant = {"total_steps": [5100] * rows, "current_steps": episodes, "loss": reward}
    assert step_column(constant, rows) == "current_steps"
    fractions = {"epoch": [0.25 * row for row in range(rows)], "loss": reward}
    assert step_column(fractions, rows) is None
    batches = {"epoch": [row // 10 for row in range(rows)], "loss": reward}
    assert step_column(batches, rows) is None  # ten rows share an epoch
    assert step_column({"my_iteration_count": episodes, "loss": reward}, rows) == (
        "my_iteration_count"
    )
    assert step_column({"loss": reward, "x": episodes}, rows) is None


def test_a_count_that_begins_again_is_of_several_runs_unless_another_counts_on() -> None:
    inner = [step for _ in range(9) for step in range(1, 6)]
    reward = list(range(45))
    assert step_column({"iteration": inner, "reward": reward, "episodes": [8] * 45}, 45) == (
        "iteration"
    )
    episodes = [episode for episode in range(9) for _ in range(5)]
    assert step_column({"step": inner, "episode": episodes, "reward": reward}, 45) is None


def test_evaluation_rows_at_the_step_of_a_training_row_are_no_reason_against_it() -> None:
    steps = [step for step in range(20) for _ in range(2)]
    loss = [None if row % 2 else 1.0 for row in range(40)]
    accuracy = [0.5 if row % 2 else None for row in range(40)]
    assert step_column({"step": steps, "loss": loss, "eval": accuracy}, 40) == "step"


def test_rows_of_another_kind_that_come_later_are_no_reason_against_it() -> None:
    steps = [*range(0, 60, 3), 2, 3, 40, 5, 9, 1]
    env_steps = [10 * step for step in steps[:20]] + [None] * 6
    loss = [1.0] * 20 + [None] * 6
    tables = {f"table {n}": [None] * (20 + n) + [1.0] + [None] * (5 - n) for n in range(6)}
    columns = {"step": steps, "env_steps": env_steps, "loss": loss, **tables}
    assert step_column(columns, 26) == "step"


def test_a_fractional_epoch_is_no_error_and_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"epoch": 0.25 * row, "loss": 1.0 / (1 + row)} for row in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(GradiometerWarning, match=r"no column counts the steps \(epoch does not"):
        log = open_log(path)
    assert log.series("loss")[0].tolist() == list(range(8))
    assert log.facts["imported"]["x_axis"] == "rows"


def log_of(*parts: range, values: dict[str, Any] | None = None) -> Log:
    rows = [(step, {"x": 100.0 * n + step}) for n, part in enumerate(parts) for step in part]
    return Log("log", name="log", run_id="0", rows=rows, facts={"imported": {}})


def test_a_resume_takes_the_place_of_all_that_came_after_its_first_step() -> None:
    with pytest.warns(GradiometerWarning, match="fall back from 49 to 30, as after a resume"):
        log = log_of(range(50), range(30, 40))
    assert log.series("x")[0].tolist() == list(range(40))  # 40 to 49 never led to anything
    assert log.series("x")[1].tolist() == [*range(30), *(100.0 + step for step in range(30, 40))]
    assert log.facts["imported"]["replaced"] == 20
    assert log.newest_step == 39


def test_a_fresh_start_is_another_run_and_the_last_long_one_is_read() -> None:
    with pytest.warns(GradiometerWarning, match="3 runs one after another .*read is number 2"):
        log = log_of(range(50), range(40), range(5))
    assert log.series("x")[1].tolist() == [100.0 + step for step in range(40)]
    imported = log.facts["imported"]
    assert (imported["runs"], imported["run"]) == (3, 2)
    assert imported["returns"] == [[49, 0], [39, 0]]


def test_a_late_row_takes_nobodys_place() -> None:
    with pytest.warns(GradiometerWarning, match="fall back from 9 to 5"):
        log = log_of(range(10), range(5, 6), range(10, 12))
    assert log.series("x")[0].tolist() == list(range(12))
    assert log.series("x")[1].tolist()[4:7] == [4.0, 105.0, 6.0]


def test_steps_that_fall_back_all_the_time_are_tangled_and_nothing_is_cut() -> None:
    steps = [step + (step % 2) * 7 for step in range(400)]
    rows = [(step, {"x": float(step)}) for step in steps]
    with pytest.warns(GradiometerWarning, match="64 times, first"):
        log = Log("log", name="log", run_id="0", rows=rows)
    assert log.series("x")[0].tolist() == sorted(set(steps))


def test_series_with_counts_of_their_own_are_not_taken_for_restarts() -> None:
    rows: list[tuple[int, dict[str, float]]] = []
    for update in range(20):
        rows += [(1000 * update, {"reward": 1.0}), (update, {"loss": 2.0})]
    log = Log("log", name="log", run_id="0", rows=rows, facts={"imported": {}})
    assert len(log.series("reward")[0]) == len(log.series("loss")[0]) == 20
    assert "returns" not in log.facts["imported"]


def test_the_parts_of_runs_are_those_of_a_simulation() -> None:
    """Random lineages: each part is known to resume somewhere or to begin again."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        parts, runs, reached = [range(100)], [[0]], 99
        for number in range(1, int(rng.integers(2, 8))):
            fresh = bool(rng.random() < 0.4)
            first = 0 if fresh else int(rng.integers(10, reached - 2))
            length = int(rng.integers(60, 200))
            parts.append(range(first, first + length))
            runs.append([number]) if fresh else runs[-1].append(number)
            reached = first + length - 1 if fresh else max(reached, first + length - 1)
        found = runs_of([np.array(part) for part in parts])
        assert [[part for part, _ in run] for run in found] == runs
        for run in found:
            for place, (_, cut) in enumerate(run):
                later = [parts[part][0] for part, _ in run[place + 1 :]]
                assert cut == min(later, default=None)
