"""CSV logs: what SB3 wrote in a real training, what people and exports write, and files too large
for memory."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradiometer.doctor.rundata import RunData
from gradiometer.errors import GradiometerWarning, NotARun, UsageError
from gradiometer.store.formats.csv_files import read_csv
from gradiometer.store.import_log import import_log
from gradiometer.store.importers import identify, open_log
from gradiometer.store.logs import Columns
from gradiometer.store.reader import load

FIXTURES = Path(__file__).parent.parent / "fixtures"


def written(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_text("\n".join(lines) + end)
    return path


def table(path: Path) -> list[dict[str, str]]:
    """The cells by the plainest means: no quotes are in these files."""
    names, *rows = [line.split(",") for line in path.read_text().splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("name", ["sb3_ppo", "sb3_dqn"])
def test_every_filled_cell_of_a_real_sb3_log_is_a_point_and_no_empty_one_is(name: str) -> None:
    path = FIXTURES / name / "progress.csv"
    log = read_csv(path)
    rows = table(path)
    assert set(log.names()) == set(rows[0]) - {"time/total_timesteps"}
    for series in log.names():
        expected: dict[int, float] = {}
        for row in rows:
            if row[series]:
                expected[int(row["time/total_timesteps"])] = float(row[series])
        steps, values = log.series(series)
        assert steps.tolist() == sorted(expected)
        assert values.tolist() == [expected[step] for step in sorted(expected)]
        assert not np.isnan(values).any()


def test_the_facts_of_an_sb3_log_say_whose_names_and_what_its_steps_count() -> None:
    log = read_csv(FIXTURES / "sb3_ppo" / "progress.csv")
    assert log.name == "sb3_ppo"
    assert log.facts["imported"] == {
        "format": "csv",
        "library": "SB3",
        "step": "time/total_timesteps",
        "x_axis": "environment steps",
    }
    assert log.steps()["env_steps"].tolist() == log.steps()["step"].tolist()


def test_a_chart_of_an_sb3_log_has_positive_entropy_and_its_kl_estimator() -> None:
    log = read_csv(FIXTURES / "sb3_ppo" / "progress.csv")
    data = RunData(log)
    entropy, kl, reward = data.get("entropy"), data.get("approx_kl"), data.get("reward")
    assert entropy is not None
    assert entropy.values.tolist() == (-log.series("train/entropy_loss")[1]).tolist()
    assert (entropy.values > 0).all()
    assert kl is not None
    assert (kl.estimator, kl.library) == ("k3", "SB3")
    assert reward is not None
    assert len(reward) == 40
    assert set(data.unknown) == {
        "time/fps",
        "time/iterations",
        "time/time_elapsed",
        "train/n_updates",
    }


def test_an_sb3_log_becomes_a_run_that_holds_the_same(tmp_path: Path) -> None:
    log = read_csv(FIXTURES / "sb3_dqn" / "progress.csv")
    kept = import_log(log, tmp_path / "run")
    assert (kept.format, kept.library, kept.x_axis) == ("csv", "SB3", "environment steps")
    with load(tmp_path / "run") as run:
        assert run.names() == log.names()
        for name in log.names():
            for ours, theirs in zip(run.series(name), log.series(name), strict=True):
                np.testing.assert_array_equal(ours, theirs)
        for ours, theirs in zip(run.summaries(), log.summaries(), strict=True):
            assert (ours.name, ours.count, ours.last) == (theirs.name, theirs.count, theirs.last)
            assert ours.mean == pytest.approx(theirs.mean)
        assert run.steps()["env_steps"].tolist() == log.steps()["step"].tolist()
        assert identify(run) == log.run_id


def test_an_empty_cell_is_missing_and_a_spelled_nan_is_a_nan(tmp_path: Path) -> None:
    lines = [
        "step,a,b",
        "0,nan,",
        "1,,inf",
        "2,NaN,-Infinity",
        "3,None,1e400",
        "4,-,n/a",
        "5,+INF,True",
        "6,1.5,false",
    ]
    log = read_csv(written(tmp_path / "x.csv", *lines))
    steps, values = log.series("a")
    assert steps.tolist() == [0, 2, 5, 6]
    assert np.isnan(values[:2]).all()
    assert values[2:].tolist() == [math.inf, 1.5]
    assert log.series("b")[0].tolist() == [1, 2, 3, 5, 6]
    assert log.series("b")[1].tolist() == [math.inf, -math.inf, math.inf, 1.0, 0.0]
    assert log.left_out == ()


def test_a_column_of_nothing_is_no_series_and_rows_without_values_keep_their_step(
    tmp_path: Path,
) -> None:
    log = read_csv(written(tmp_path / "x.csv", "step,a,b", "0,1,", "7,,"))
    assert log.names() == ["a"]
    assert log.steps()["step"].tolist() == [0, 7]


def test_text_among_numbers_is_left_out_and_named(tmp_path: Path) -> None:
    log = read_csv(
        written(
            tmp_path / "x.csv", "step,loss,note", "0,1,first", "1,oops,second", "2,0x10,", "3,0.5,"
        )
    )
    assert log.series("loss")[0].tolist() == [0, 3]
    assert log.left_out == ("loss", "note")
    assert log.names() == ["loss"]


def test_quoted_cells_and_names_are_read(tmp_path: Path) -> None:
    log = read_csv(
        written(tmp_path / "x.csv", '"step","a, b",c', '1,"2.5","text, with ""commas"""', '"2",3,4')
    )
    assert log.series("a, b")[1].tolist() == [2.5, 3.0]
    assert log.series("c")[1].tolist() == [4.0]
    assert log.left_out == ("c",)


@pytest.mark.parametrize(
    ("separator", "suffix"), [(",", ".csv"), ("\t", ".tsv"), (";", ".csv"), ("\t", ".txt")]
)
def test_commas_tabs_and_semicolons_split_cells(
    tmp_path: Path, separator: str, suffix: str
) -> None:
    log = open_log(
        written(
            tmp_path / f"x{suffix}", separator.join(["Epoch", "Loss"]), separator.join(["3", "0.5"])
        )
    )
    assert log.series("Loss")[0].tolist() == [3]
    assert log.facts["imported"]["x_axis"] == "epochs"


def test_bytes_of_windows_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "bom.csv").write_bytes("\ufeffstep,loss\r\n1,2\r\n".encode())
    (tmp_path / "wide.csv").write_bytes("step,loss\r\n1,2\r\n".encode("utf-16"))
    for name in ("bom.csv", "wide.csv"):
        assert read_csv(tmp_path / name).series("loss")[1].tolist() == [2.0]


def test_the_step_is_the_first_of_the_stated_names_that_most_rows_have(tmp_path: Path) -> None:
    log = read_csv(written(tmp_path / "a.csv", "epoch,global_step,loss", "0.5,10,1", "1.0,20,2"))
    assert log.facts["imported"]["step"] == "global_step"
    assert log.names() == ["epoch", "loss"]
    log = read_csv(
        written(tmp_path / "b.csv", "step,time/total_timesteps,loss", ",10,1", ",20,2", "3,30,3")
    )
    assert log.facts["imported"]["step"] == "time/total_timesteps"
    assert log.series("loss")[0].tolist() == [10, 20, 30]


def test_a_name_that_is_there_twice_is_kept_twice(tmp_path: Path) -> None:
    with pytest.warns(GradiometerWarning, match="there twice are kept as loss#2"):
        log = read_csv(written(tmp_path / "x.csv", "step,loss,loss", "0,1,2"))
    assert [log.series(name)[1].tolist() for name in ("loss", "loss#2")] == [[1.0], [2.0]]


def test_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    log = read_csv(written(tmp_path / "x.csv", ",step,loss", "0,5,1"))
    assert log.names() == ["loss"]
    assert log.left_out == ("column 1",)


def test_lines_that_do_not_fit_are_skipped_and_counted(tmp_path: Path) -> None:
    before = [f"{step},0,0" for step in range(-40, 0)]
    lines = ["step,a,b", *before, "0,1,2", "1,1,2,3", "", "2,4", "step,a,b", "x,1,1", "3.5,1,1"]
    lines.append("4.0,5,6,")
    with pytest.warns(GradiometerWarning) as said:
        log = read_csv(written(tmp_path / "x.csv", *lines))
    texts = sorted(str(warning.message).partition(": ")[2] for warning in said)
    assert texts == [
        "1 line skipped: more cells than names",
        "1 line skipped: the names again",
        "2 lines skipped: no whole number as step",
    ]
    assert log.series("a")[0].tolist()[40:] == [0, 2, 4]
    assert log.series("b")[0].tolist()[40:] == [0, 4]


def test_of_a_last_line_that_does_not_end_the_last_cell_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "step,a,b", "0,1,1", "1,2,0.00012", end="")
    with pytest.warns(GradiometerWarning, match="last cell may be cut off"):
        log = read_csv(path)
    assert log.series("a")[0].tolist() == [0, 1]
    assert log.series("b")[0].tolist() == [0]
    with pytest.warns(GradiometerWarning, match="last cell may be cut off"):
        assert (
            read_csv(written(tmp_path / "y.csv", "step,a", "10,1", "1", end="")).newest_step == 10
        )


def test_steps_that_go_backwards_are_put_in_order_and_the_later_word_counts(tmp_path: Path) -> None:
    lines = [
        "step,a",
        *(f"{step},{step}" for step in (0, 10, 20, 30)),
        *(f"{step},{-step}" for step in (20, 30, 40)),
    ]
    with pytest.warns(GradiometerWarning, match="steps fall back from 30 to 20"):
        log = read_csv(written(tmp_path / "x.csv", *lines))
    assert log.series("a")[0].tolist() == [0, 10, 20, 30, 40]
    assert log.series("a")[1].tolist() == [0.0, 10.0, -20.0, -30.0, -40.0]
    assert log.facts["imported"]["returns"] == [[30, 20]]
    assert log.facts["imported"]["replaced"] == 2


def test_a_step_that_is_there_twice_is_one_row(tmp_path: Path) -> None:
    log = read_csv(written(tmp_path / "x.csv", "step,a,b", "5,1,1", "5,,1", "5,3,"))
    assert (log.series("a")[1].tolist(), log.series("b")[1].tolist()) == ([3.0], [1.0])
    assert [row.values for row in log.rows()] == [{"a": 3.0, "b": 1.0}]
    assert log.facts["imported"]["replaced"] == 1  # b said the same twice


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is an empty file"),
        ("\n\n  \n", "is an empty file"),
        ("step,loss\n", "no rows with a step"),
        ("step,loss\n,1\n", "one set of values and not a curve"),
        ("a,b\n1,2\n", "no column that counts the steps.*one of _step, step, .*found: a, b"),
        ("hello\n", "names and no rows"),
        ("model,acc\nx,0.5\ny,0.6\n", "a table of runs or models, a row for each model"),
        ("step,a\n0," + "x" * 200_000 + "\n", "cannot be read as CSV .*field larger"),
    ],
)
def test_a_csv_without_a_curve_is_an_error_that_says_why(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(UsageError, match=says):
        open_log(tmp_path / "x.csv")


def test_where_no_column_counts_the_steps_of_a_log_its_rows_are_counted(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "reward,loss\n" + "".join(f"{row},{-row}\n" for row in range(5000))
    )
    with pytest.warns(
        GradiometerWarning, match="no column counts the steps, so its rows are counted"
    ):
        log = open_log(tmp_path / "x.csv")
    steps, values = log.series("reward")
    assert steps.tolist() == values.tolist() == list(range(5000))
    assert "step" not in log.facts["imported"]


def test_a_binary_file_called_csv_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(NotARun, match="binary"):
        open_log(tmp_path / "x.csv")


def test_one_row_and_a_column_of_nan_are_read(tmp_path: Path) -> None:
    log = read_csv(written(tmp_path / "x.csv", "step,loss", "3,nan"))
    assert np.isnan(log.series("loss")[1]).all()
    assert log.summaries()[0].nan_count == 1


def test_the_id_of_a_growing_log_stays_when_new_names_come_with_it(tmp_path: Path) -> None:
    before = read_csv(written(tmp_path / "progress.csv", "step,a", "1,2")).run_id
    assert (
        read_csv(written(tmp_path / "progress.csv", "step,a,b", "1,2,", "2,3,4")).run_id == before
    )


@pytest.mark.parametrize("at_once", [1, 7, 1000, 10**9])
def test_points_come_back_in_order_however_few_fit_into_memory(at_once: int) -> None:
    rng = np.random.default_rng(0)
    columns, expected = Columns(at_once=at_once), {}
    for _ in range(40):
        name = str(rng.integers(3))
        steps, values = rng.integers(-20, 20, size=5), rng.normal(size=5)
        columns.extend(name, steps, values)
        columns.add("3", int(steps[0]), float(values[0]))
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            expected.setdefault(name, {})[step] = value
        expected.setdefault("3", {})[int(steps[0])] = float(values[0])
    columns.finish()
    assert columns.names() == sorted(expected)
    for name, points in expected.items():
        steps, values = columns.series(name)
        assert dict(zip(steps.tolist(), values.tolist(), strict=True)) == points
        assert steps.tolist() == sorted(points)
    every = np.unique([step for points in expected.values() for step in points])
    rows = dict(columns.rows(every))
    assert {
        name: {step: row[name] for step, row in rows.items() if name in row} for name in expected
    } == expected


# VmHWM and not ru_maxrss, which a process inherits from the one that started it.
MEASURE = """
import sys

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

from gradiometer.store.importers import open_log
from gradiometer.store.logs import AT_ONCE, Columns
Columns.__init__.__kwdefaults__["at_once"] = AT_ONCE // int(sys.argv[3])
before = peak()
log = open_log(sys.argv[1])
steps, values = log.series("train/x3")
assert len(steps) == int(sys.argv[2]) and values[-1] == int(sys.argv[2]) - 1, (len(steps), values[-1])
print((peak() - before) / 1024)
"""


def memory_of_reading(path: Path, rows: int, part: int) -> float:
    """MB that reading takes, in a process of its own, which lets a part of the points wait."""
    with path.open("w") as file:
        file.write(
            "time/total_timesteps," + ",".join(f"train/x{place}" for place in range(16)) + "\n"
        )
        three = [",".join([f"0.12345678901234567{digit}"] * 3) for digit in range(10)]
        twelve = ",".join(["1.5"] * 12)
        file.writelines(f"{step},{three[step % 10]},{step},{twelve}\n" for step in range(rows))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, path, str(rows), str(part)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("part", [4, pytest.param(1, marks=pytest.mark.proof)])
def test_a_log_four_times_as_long_takes_hardly_more_memory(tmp_path: Path, part: int) -> None:
    """0.5 million rows hold 8 million points: 128 MB as arrays, a gigabyte as Python objects.
    Waiting points take 64 MB. The quick form has a quarter of everything, bounds too."""
    small = memory_of_reading(tmp_path / "small.csv", 125_000 // part, part)
    large = memory_of_reading(tmp_path / "large.csv", 500_000 // part, part)
    assert (tmp_path / "large.csv").stat().st_size > 50e6 / part
    assert large < 200 / part
    assert large - small < 130 / part
