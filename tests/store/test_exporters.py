"""A whole run in the formats of other tools: each is read back, every value."""

from __future__ import annotations

import functools
import itertools
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradiometer.errors import MissingExtra, RunExists, UnknownName, UsageError
from gradiometer.records import Event, Finding, Row, Table, Vector
from gradiometer.store import exporters
from gradiometer.store.exporters import FORMATS, export_run
from gradiometer.store.importers import load
from gradiometer.store.reader import Run
from gradiometer.store.writer import Writer

FILES = ("csv", "jsonl", "parquet")
Points = Mapping[str, Mapping[int, float]]
FINDING = Finding(
    id="dead-term",
    title="A term has no gradient",
    severity="critical",
    basis="proved",
    since_step=2,
)


def write(folder: Path, rows: list[Row]) -> Path:
    with Writer(folder, facts={"config": {"lr": 0.5}, "seed": 3}) as writer:
        for row in rows:
            writer.put(row)
        writer.put(
            Table(
                step=2,
                name="group_rv_table",
                content={"columns": ["g", "rv"], "data": [[0, math.nan], [1, 0.5]]},
            )
        )
        writer.put(Vector(step=2, name="sketch/all", values=np.ones(3)))
        writer.put(Event(step=4, kind="nonfinite", message="a NaN"))
        writer.put(FINDING)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    odd = {2: math.nan, 5: math.inf, 7: -math.inf, 8: 1e-320, 9: 0.1 + 0.2}
    rows = []
    for step in range(0, 20):
        values = {
            "grad/all/norm/raw": step / 7,
            'a, "quoted" name': -1e300 * step,
            "grad/layer.0.w/cos": odd.get(step, 1.0),
        }
        if step % 3 == 0:
            del values["grad/layer.0.w/cos"]  # missing is not NaN
        if step == 4:
            values["epoch"] = 0.25  # a scalar of the user's with the name of a coordinate
        known = {"env_steps": 10 * step, "epoch": step // 5} if step > 3 else {}
        rows.append(Row(step=3 * step, wall_time=1.7e9 + step / 8, values=values, **known))
    return write(tmp_path / "run", rows)


def points(log: Any, names: Mapping[str, str] | None = None) -> dict[str, dict[int, float]]:
    return {
        name: dict(
            zip(*(part.tolist() for part in log.series((names or {}).get(name, name))), strict=True)
        )
        for name in names or {name: name for name in log.names()}
    }


def own(folder: Path) -> dict[str, dict[int, float]]:
    with Run(folder / "run.db") as run:
        return points(run)


def same(found: Points, wanted: Points) -> None:
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        assert set(found[name]) == set(values), name
        for step, value in values.items():
            other = found[name][step]
            assert other == value or (math.isnan(value) and math.isnan(other)), (
                name,
                step,
                value,
                other,
            )


def columns(folder: Path) -> dict[str, str]:
    return {name: f"{name}#2" if name in exporters.COORDINATES else name for name in own(folder)}


def from_parquet(path: Path, names: Mapping[str, str]) -> dict[str, dict[int, float]]:
    from pyarrow import parquet

    table = parquet.read_table(path).to_pydict()
    return {
        name: {
            step: x for step, x in zip(table["step"], table[column], strict=True) if x is not None
        }
        for name, column in names.items()
    }


@pytest.mark.parametrize("height", [1, 7, 10**6])
@pytest.mark.parametrize("to", FILES)
def test_a_file_holds_every_value_exactly(
    run: Path, tmp_path: Path, to: str, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "CELLS_AT_ONCE", height * (4 + len(exporters.COORDINATES)))
    path = tmp_path / f"out.{to}"
    seen: list[tuple[int, int]] = []
    with load(run) as opened:
        done = export_run(opened, path, to=to, progress=lambda *at: seen.append(at))  # type: ignore[arg-type]
    same(
        from_parquet(path, columns(run)) if to == "parquet" else points(load(path), columns(run)),
        own(run),
    )
    assert (done.file, done.series, done.steps) == (path, 4, 20)
    assert (done.values, done.nans) == (sum(map(len, own(run).values())), 1)
    assert seen[-1] == (20, 20)
    assert len(seen) == math.ceil(20 / min(20, height))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [f"out.{to}", "run"]


def test_csv_is_wide_and_says_where_each_step_lies(run: Path, tmp_path: Path) -> None:
    with load(run) as opened:
        done = export_run(opened, tmp_path / "x.csv", to="csv")
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert (
        lines[0] == 'step,wall_time,env_steps,rollout,epoch,"a, ""quoted""'
        ' name",epoch#2,grad/all/norm/raw,grad/layer.0.w/cos'
    )
    assert lines[1] == "0,1700000000.0,,,,0.0,,0.0,"  # SQLite keeps no sign of a zero
    assert lines[3].endswith(",NaN")
    assert lines[5] == f"12,1700000000.5,40,,0,-4e+300,0.25,{4 / 7!r},1.0"
    assert lines[6].endswith(",Infinity")
    assert done.left_out == ("1 tables", "1 sketches and histograms", "1 events", "1 findings")


def test_parquet_has_whole_numbers_nulls_and_the_facts(run: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    with load(run) as opened:
        export_run(opened, tmp_path / "x.parquet", to="parquet")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert [str(table.schema.field(name).type) for name in exporters.COORDINATES] == [
        "int64",
        "double",
        "int64",
        "int64",
        "int64",
    ]
    assert table["env_steps"].to_pylist()[3:6] == [None, 40, 50]
    assert table["wall_time"].to_pylist()[1] == 1.7e9 + 1 / 8
    assert json.loads(table.schema.metadata[b"gradiometer"])["config"] == {"lr": 0.5}


def test_jsonl_holds_tables_events_and_findings_too(run: Path, tmp_path: Path) -> None:
    with load(run) as opened:
        done = export_run(opened, tmp_path / "x.jsonl", to="jsonl")
    assert done.left_out == ("1 sketches and histograms",)
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines[:20]] == list(range(0, 60, 3))
    assert lines[-2]["gradiometer/event"]["message"] == "a NaN"
    assert lines[-1]["gradiometer/finding"]["id"] == "dead-term"
    table = load(tmp_path / "x.jsonl").table("group_rv_table", 2).content
    assert table == {"columns": ["g", "rv"], "data": [[0, "NaN"], [1, 0.5]]}


@pytest.mark.parametrize("reader", ["ours", "theirs"])
def test_tensorboard_holds_every_value_in_32_bits(run: Path, tmp_path: Path, reader: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with load(run) as opened:
        done = export_run(opened, tmp_path / "tb", to="tensorboard")
    with np.errstate(over="ignore"):
        wanted = {
            n: {s: float(np.float32(x)) for s, x in values.items()}
            for n, values in own(run).items()
        }
    if reader == "ours":
        log = load(tmp_path / "tb")
        same(points(log), wanted)
        assert log.steps()["wall_time"].tolist() == [1.7e9 + step / 8 for step in range(20)]
    else:
        events = EventAccumulator(str(tmp_path / "tb"), size_guidance={"scalars": 0}).Reload()
        same(
            {
                tag: {e.step: e.value for e in events.Scalars(tag)}
                for tag in events.Tags()["scalars"]
            },
            wanted,
        )
        assert "group_rv_table/text_summary" in events.Tags()["tensors"]
    assert done.notes == ("tensorboard: a number beyond 3.4e38 is an Inf there: it keeps 32 bits",)
    assert done.left_out == ("1 sketches and histograms",)


@pytest.mark.slow
def test_wandb_is_an_offline_run_whose_steps_are_those_of_the_run(
    run: Path, tmp_path: Path
) -> None:
    import wandb

    # Tables of a step that has no row have no row to lie in.
    with load(run) as opened:
        done = export_run(opened, tmp_path / "out" / "wb", to="wandb")
    assert wandb.run is None
    log = load(tmp_path / "out" / "wb")
    same(
        {
            name: at
            for name, at in points(log).items()
            if name[0] != "_" and "gradiometer/" not in name
        },
        own(run),
    )
    assert log.series("_timestamp")[1].tolist() == [1.7e9 + step / 8 for step in range(20)]
    assert log.series("gradiometer/env_steps")[1].tolist() == [10.0 * step for step in range(4, 20)]
    assert (log.name, log.facts["config"]) == ("run", {"lr": 0.5})
    assert done.notes == (
        "W&B takes steps in order only: the tables of step 2, which has no row, are left out",
    )
    assert done.left_out == ("1 sketches and histograms", "1 events", "1 findings")
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["wb"]


@pytest.mark.slow
def test_wandb_holds_tables_at_their_step_and_many_rows(tmp_path: Path) -> None:
    rows = [
        Row(step=step, wall_time=1.7e9, values={"a": float(step), "b": 1 / (step + 1)})
        for step in range(3000)
    ]
    folder = write(tmp_path / "run", rows)
    with load(folder) as opened:
        done = export_run(opened, tmp_path / "wb", to="wandb")
    log = load(tmp_path / "wb")
    same({name: points(log)[name] for name in "ab"}, own(folder))
    (table,) = log.tables("group_rv_table")
    assert (table.step, table.content["columns"]) == (2, ["g", "rv"])
    assert table.content["data"][1] == [1, 0.5]
    assert done.notes == ()


def test_wandb_is_waited_for_until_its_file_has_an_end(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(run) as opened:
        export_run(opened, tmp_path / "wb", to="wandb")
    whole = next((tmp_path / "wb").glob("*.wandb")).read_bytes()
    (tmp_path / "growing").mkdir()
    file = tmp_path / "growing" / "run-x.wandb"
    file.write_bytes(whole[:7])

    def grow() -> None:
        ends = (7, len(whole) // 3, len(whole) - 1, len(whole))
        for start, end in itertools.pairwise(ends):
            time.sleep(0.2)
            with file.open("ab") as growing:
                growing.write(whole[start:end])

    writer = threading.Thread(target=grow)
    writer.start()
    assert exporters.await_wandb(file.parent) == 20
    assert file.read_bytes() == whole
    writer.join()
    monkeypatch.setattr(exporters, "END_SECONDS", 0.2)
    file.write_bytes(whole[:-1])
    with pytest.raises(UsageError, match="did not finish its file"):
        exporters.await_wandb(file.parent)


def test_wandb_keeps_nothing_when_rows_are_missing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "await_wandb", lambda folder: 19)
    with load(run) as opened, pytest.raises(UsageError, match="W&B wrote 19 of 20 rows"):
        export_run(opened, tmp_path / "wb", to="wandb")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_what_came_from_another_tool_is_exported_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"step": 1, "loss": 0.5}\n{"step": 3, "loss": "NaN", "kl": 2}\n'
    )
    for to in ("csv", "parquet", "tensorboard"):
        with load(tmp_path / "a.jsonl") as log:
            done = export_run(log, tmp_path / f"out-{to}", to=to)  # type: ignore[arg-type]
        assert (done.steps, done.values, done.nans, done.left_out) == (2, 3, 1, ())
    wanted = {"loss": {1: 0.5, 3: math.nan}, "kl": {3: 2.0}}
    same(from_parquet(tmp_path / "out-parquet", {"loss": "loss", "kl": "kl"}), wanted)
    same(points(load(tmp_path / "out-tensorboard")), wanted)
    assert (tmp_path / "out-csv").read_text().splitlines()[1] == "1,,,,,,0.5"


@pytest.mark.parametrize("to", sorted(FORMATS))
def test_an_error_on_the_way_leaves_nothing_and_what_was_there_stays(
    run: Path, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "out"
    before = Run.part

    def part(self: Run, name: str, *ends: Any) -> Any:
        if name == "grad/layer.0.w/cos" and ends[0] > 0:
            raise OSError(28, "No space left on device")
        return before(self, name, *ends)

    monkeypatch.setattr(exporters, "CELLS_AT_ONCE", 3 * (4 + 5))
    with load(run) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(Run, "part", part)
            with pytest.raises(UsageError, match=r"out cannot be written.*No space left"):
                export_run(opened, path, to=to)  # type: ignore[arg-type]
        assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
        export_run(opened, path, to=to)  # type: ignore[arg-type]
        kept = {
            file: file.read_bytes()
            for file in path.parent.rglob("*")
            if file.is_file() and file.suffix != ".log"
        }
        with monkeypatch.context() as patch:
            patch.setattr(Run, "part", part)
            with pytest.raises(UsageError, match="cannot be written"):
                export_run(opened, path, to=to, overwrite=True)  # type: ignore[arg-type]
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file in kept} == kept
    assert [entry.name for entry in path.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("to", ["csv", "tensorboard"])
def test_overwrite_replaces_an_export_and_nothing_else(run: Path, tmp_path: Path, to: str) -> None:
    path = tmp_path / "out"
    with load(run) as opened:
        export_run(opened, path, to=to)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="already exists"):
            export_run(opened, path, to=to)  # type: ignore[arg-type]
        export_run(opened, path, to=to, overwrite=True)  # type: ignore[arg-type]
        assert path.is_file() or len(list(path.iterdir())) == 1
        with pytest.raises(
            RunExists if to == "csv" else UsageError, match=r"place of a run|holds other files"
        ):
            place = run / "run.db" if to == "csv" else run
            export_run(opened, place, to=to, overwrite=True)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"is a folder|is a file"):
            export_run(opened, run if to == "csv" else run / "run.db", to=to, overwrite=True)  # type: ignore[arg-type]
        with pytest.raises(UnknownName, match="did you mean 'csv'"):
            export_run(opened, path, to="cvs")  # type: ignore[arg-type]
    assert own(run)


@pytest.mark.parametrize(
    ("to", "package", "extra"), [("parquet", "pyarrow", "parquet"), ("wandb", "wandb", "trackers")]
)
def test_a_missing_package_is_told_and_nothing_is_made(
    run: Path, tmp_path: Path, to: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, package, None)
    with load(run) as opened, pytest.raises(MissingExtra, match=rf"gradiometer\[{extra}\]"):
        export_run(opened, tmp_path / "deep" / "x", to=to)  # type: ignore[arg-type]
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_wandb_counts_from_0(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"step": -1, "loss": 0.5}\n')
    with load(tmp_path / "a.jsonl") as log, pytest.raises(UsageError, match="step -1 is negative"):
        export_run(log, tmp_path / "x", to="wandb")
    assert not (tmp_path / "x").exists()


NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.dictionaries(
        NAMES, st.dictionaries(st.integers(0, 30), NUMBERS, min_size=1), min_size=1, max_size=4
    )
)
def test_any_numbers_under_any_names_come_back(
    tmp_path_factory: pytest.TempPathFactory, made: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with Writer(folder / "run") as writer:
        for name, values in made.items():
            for step, value in values.items():
                writer.put(Row(step=step, wall_time=0.0, values={name: value}))
    wanted = own(folder / "run")
    with load(folder / "run") as run:
        export_run(run, folder / "x.parquet", to="parquet")
        export_run(run, folder / "x.csv", to="csv")
    same(from_parquet(folder / "x.parquet", exporters.column_names(list(wanted))), wanted)
    import csv as csv_module

    with (folder / "x.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv_module.DictReader(file))
    names = exporters.column_names(list(wanted))
    same(
        {
            name: {int(row["step"]): float(row[names[name]]) for row in table if row[names[name]]}
            for name in wanted
        },
        wanted,
    )


# VmHWM and not ru_maxrss, which a process inherits from the one that started it.
MEMORY = """
import sys
from gradiometer.store import exporters
from gradiometer.store.importers import load
from gradiometer.store.exporters import export_run

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) // 1024

if sys.argv[3] == "parquet":  # a hundred megabytes of libraries are not the run's
    import pyarrow.parquet
with load(sys.argv[1]) as run:
    before = peak()
    for cells in sys.argv[4:]:  # the smallest peak first: it never falls
        exporters.CELLS_AT_ONCE = int(cells)
        done = export_run(run, f"{sys.argv[2]}-{cells}", to=sys.argv[3])
        print(done.values, peak() - before)
"""


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A run of so many steps with 500 series each, written once."""

    @functools.cache
    def written(steps: int) -> Path:
        folder = tmp_path_factory.mktemp("long") / "run"
        names = [f"grad/layer.{number}/norm/raw" for number in range(500)]
        with Writer(folder) as writer:
            for step in range(steps):
                writer.put(Row(step=step, wall_time=0.0, values=dict.fromkeys(names, step / 3)))
                if step % 200 == 199:
                    writer.flush()
        return folder

    return written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "steps", "cells", "megabytes"),
    [
        *((to, 500, 25_000, 40) for to in ("csv", "jsonl", "tensorboard")),
        # Its library takes 60 MB to begin with: a short run would not show.
        ("parquet", 2000, 100_000, 150),
        *(
            pytest.param(to, 2000, 100_000, 150, marks=pytest.mark.proof)
            for to in ("csv", "jsonl", "tensorboard")
        ),
    ],
)
def test_memory_does_not_grow_with_the_length_of_a_run(
    tmp_path: Path, long_run: Callable[[int], Path], to: str, steps: int, cells: int, megabytes: int
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", MEMORY, str(long_run(steps))),
            *(str(tmp_path / "out"), to, str(cells), str(10**9)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line.split() for line in done.stdout.splitlines()]
    assert [int(values) for values, _ in found] == [500 * steps] * 2
    in_chunks, at_once = (int(taken) for _, taken in found)
    print(to, in_chunks, "MB in chunks,", at_once, "MB at once")
    assert in_chunks < at_once  # the measurement sees what it is there to see
    assert in_chunks < megabytes
