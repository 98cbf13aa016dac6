"""Logs that other people's tools wrote: real W&B files, JSONL as verl writes it, and what a crash
leaves of them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.errors import (
    GradiometerWarning,
    NotARun,
    RunDamaged,
    RunNotFound,
    UnknownName,
    UsageError,
)
from gradiometer.records import Row, Table
from gradiometer.store.formats.json_files import read_jsonl
from gradiometer.store.formats.wandb import BLOCK, read_wandb_file
from gradiometer.store.import_log import import_log
from gradiometer.store.importers import Log, identify, open_log, open_wandb
from gradiometer.store.reader import Run, load
from gradiometer.store.writer import Writer

COLUMNS = ["bucket", "group_id", "reward_std"]
STEPS = (1, 11, 21)


def group_rows(step: int) -> list[list[Any]]:
    return [["bucket_1", 3, 0.5], ["bucket_1", 4, 0.25 * step]]


def history(step: int) -> dict[str, float]:
    keys = [
        f"grad_norm/{bucket}/{term}"
        for bucket in ("all", "bucket_1")
        for term in ("task", "entropy", "kl")
    ]
    keys += [
        f"grad_norm/bucket_{bucket}/signal_low/{term}"
        for bucket in range(1, 49)
        for term in ("task", "kl")
    ]
    return {
        "actor/loss/policy": -0.5,
        **{name: step + place / 7 for place, name in enumerate(keys)},
    }


# Run as a process of its own: W&B leaves a service behind, and its threads warn when pytest ends.
WRITE = """
import json, sys, wandb
rows = json.load(sys.stdin)
run = wandb.init(
    project="ragen", name="sokoban/PPO top_p", mode="offline", dir=sys.argv[1], id="abc12345",
    config={"trainer": {"gradient_analysis_every": 10}, "api_key": "sk-very-secret-12345", "lr": 1e-6},
    settings=wandb.Settings(silent=True, x_disable_stats=True),
)
for step, (values, table) in rows.items():
    run.log(
        {
            **values, "nested": {"deep": {"er": float(step)}}, "bad": float("nan"), "huge": float("inf"),
            "text": "words", "flag": True, "picture": wandb.Histogram([1, 2, 3]),
            "grad_norm/bucket_1/group_rv_table": wandb.Table(columns=["bucket", "group_id", "reward_std"], data=table),
        },
        step=int(step),
    )
run.finish()
"""


@pytest.fixture(scope="module")
def wandb_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real offline run of three steps, large enough for records that span blocks."""
    folder = tmp_path_factory.mktemp("wandb")
    rows = {step: [history(step), group_rows(step)] for step in STEPS}
    plain = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(folder)}
    command = [sys.executable, "-c", WRITE, str(folder)]
    subprocess.run(
        command,
        input=json.dumps(rows),
        text=True,
        check=True,
        capture_output=True,
        env=plain,
        cwd=folder,
    )
    (made,) = (folder / "wandb").glob("offline-run-*")
    return made


@pytest.mark.slow
def test_a_real_wandb_run_is_read_back_row_by_row(wandb_run: Path) -> None:
    log = open_log(wandb_run)
    assert isinstance(log, Log)
    assert (log.name, log.run_id, log.newest_step) == ("sokoban/PPO top_p", "abc12345", 21)
    for name in history(1):
        steps, values = log.series(name)
        assert steps.tolist() == list(STEPS)
        assert values.tolist() == [history(step)[name] for step in STEPS]
    assert log.series("nested/deep/er")[1].tolist() == [1.0, 11.0, 21.0]
    assert np.isnan(log.series("bad")[1]).all()
    assert np.isinf(log.series("huge")[1]).all()
    assert log.series("flag")[1].tolist() == [1.0, 1.0, 1.0]
    assert set(log.left_out) == {"text", "picture"}
    assert "_step" not in log.names()


def test_the_tables_of_a_wandb_run_are_read_from_their_files(wandb_run: Path) -> None:
    log = open_log(wandb_run)
    assert log.table_names() == ["grad_norm/bucket_1/group_rv_table"]
    for step in STEPS:
        table = log.table("grad_norm/bucket_1/group_rv_table", step)
        assert table == Table(
            step=step, name=table.name, content={"columns": COLUMNS, "data": group_rows(step)}
        )
    assert log.table("grad_norm/bucket_1/group_rv_table").step == 21
    with pytest.raises(UnknownName, match=r"'12' \(nearest: 11, 21, 1\)"):
        log.table("grad_norm/bucket_1/group_rv_table", 12)


def test_the_config_of_a_wandb_run_is_among_its_facts_without_secrets(wandb_run: Path) -> None:
    facts = open_log(wandb_run).facts
    assert facts["config"]["trainer"] == {"gradient_analysis_every": 10}
    assert facts["config"]["api_key"] == "[redacted]"
    assert facts["imported"]["project"] == "ragen"


def test_a_wandb_run_is_imported_whole(wandb_run: Path, tmp_path: Path) -> None:
    log = open_log(wandb_run)
    kept = import_log(log, tmp_path / "run")
    assert (kept.format, kept.tables, kept.left_out) == ("wandb", 3, ("picture", "text"))
    assert "nested/deep/er" in kept.unknown
    assert "grad_norm/all/task" not in kept.unknown
    with load(tmp_path / "run") as run:
        assert run.names() == log.names()
        for name in log.names():
            for ours, theirs in zip(run.series(name), log.series(name), strict=True):
                np.testing.assert_array_equal(ours, theirs)
        assert run.tables("grad_norm/bucket_1/group_rv_table") == log.tables(
            "grad_norm/bucket_1/group_rv_table"
        )
        assert run.facts["config"] == log.facts["config"]
        assert identify(run) == "abc12345"


def test_our_reading_of_the_records_is_that_of_wandbs_own_messages(wandb_run: Path) -> None:
    from wandb.proto import wandb_internal_pb2 as messages

    from gradiometer.store.formats.wandb import _frames

    (file,) = wandb_run.glob("*.wandb")
    blob = file.read_bytes()
    assert len(blob) > BLOCK, "no record spans two blocks"
    kinds, pieces, theirs = set(), b"", []
    for kind, data in _frames(blob, file):
        kinds.add(kind)
        pieces = data if kind in (1, 2) else pieces + data
        if kind in (1, 4):
            record = messages.Record()
            record.ParseFromString(pieces)
            if record.WhichOneof("record_type") == "history":
                items = {
                    "/".join(item.nested_key) or item.key: item.value_json
                    for item in record.history.item
                }
                theirs.append((record.history.step.num, items))
    assert {1, 2, 4} <= kinds
    assert [step for step, _ in theirs] == list(STEPS)
    log = open_log(wandb_run)
    for step, items in theirs:
        for name in history(step):
            steps, values = log.series(name)
            assert values[steps.tolist().index(step)] == json.loads(items[name])


@pytest.mark.parametrize("lost", [1, 5, 500, 20_000])
def test_a_cut_off_wandb_file_gives_what_is_whole_and_says_so(
    wandb_run: Path, tmp_path: Path, lost: int
) -> None:
    (file,) = wandb_run.glob("*.wandb")
    short = tmp_path / "run-x.wandb"
    short.write_bytes(file.read_bytes()[:-lost])
    with pytest.warns(GradiometerWarning) as said:
        log = read_wandb_file(short)
    assert any("cut off" in str(warning.message) for warning in said)
    assert log.name == "sokoban/PPO top_p"
    assert log.newest_step in (*STEPS, None)


def test_a_wandb_file_that_ends_in_zeros_is_cut_off_and_not_damaged(
    wandb_run: Path, tmp_path: Path
) -> None:
    (file,) = wandb_run.glob("*.wandb")
    padded = tmp_path / "run-x.wandb"
    padded.write_bytes(file.read_bytes() + bytes(100))
    with pytest.warns(GradiometerWarning, match="cut off|not at"):
        assert read_wandb_file(padded).newest_step == 21


def test_a_flipped_bit_in_a_wandb_file_is_found_by_its_checksum(
    wandb_run: Path, tmp_path: Path
) -> None:
    (file,) = wandb_run.glob("*.wandb")
    blob = bytearray(file.read_bytes())
    blob[BLOCK // 2] ^= 1
    (tmp_path / "run-x.wandb").write_bytes(blob)
    with pytest.raises(RunDamaged, match="checksum"):
        read_wandb_file(tmp_path / "run-x.wandb")


def test_a_table_whose_file_is_gone_is_reported(wandb_run: Path, tmp_path: Path) -> None:
    (file,) = wandb_run.glob("*.wandb")
    alone = tmp_path / file.name
    alone.write_bytes(file.read_bytes())
    with pytest.warns(GradiometerWarning, match="group_rv_table is not at"):
        log = open_log(alone)
    assert log.table_names() == []
    assert log.newest_step == 21


def test_a_wandb_run_is_found_from_its_file_its_folder_and_the_folder_above(
    wandb_run: Path, tmp_path: Path
) -> None:
    (file,) = wandb_run.glob("*.wandb")
    for path in (file, wandb_run, wandb_run.parent):
        assert open_wandb(str(path)).run_id == "abc12345"
        assert open_log(path).name == "sokoban/PPO top_p"
    for number in (1, 2):
        (tmp_path / f"offline-run-{number}").mkdir()
        (tmp_path / f"offline-run-{number}" / "run-x.wandb").write_bytes(file.read_bytes())
    with pytest.raises(NotARun, match=r"holds 2 W&B runs: give one of .*offline-run-1"):
        open_wandb(str(tmp_path))


def test_what_is_no_wandb_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="give entity/project/run_id"):
        open_wandb("no-such-run")
    with pytest.raises(NotARun, match=r"no \.wandb file"):
        open_wandb(str(tmp_path))
    (tmp_path / "x.wandb").write_text("hello")
    with pytest.raises(NotARun, match="does not begin with :W&B"):
        open_log(tmp_path / "x.wandb")


def written(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_text("\n".join(lines) + end)
    return path


def nested(depth: int) -> str:
    return '{"step": 1, "x": ' + '{"a": ' * depth + "1" + "}" * depth + "}"


def test_verls_file_logger_is_read(tmp_path: Path) -> None:
    lines = [
        json.dumps({"step": step, "data": {"actor/pg_loss": step / 2, "n": step}})
        for step in range(3)
    ]
    log = open_log(written(tmp_path / "exp.jsonl", *lines))
    assert isinstance(log, Log)
    assert log.name == "exp"
    assert log.names() == ["actor/pg_loss", "n"]
    steps, values = log.series("actor/pg_loss")
    assert steps.dtype == np.int64
    assert steps.tolist() == [0, 1, 2]
    assert values.tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("step_key", ["step", "_step", "global_step"])
def test_flat_lines_are_read_whatever_the_step_is_called(tmp_path: Path, step_key: str) -> None:
    log = read_jsonl(written(tmp_path / "a.jsonl", json.dumps({step_key: 4, "loss": 1.5})))
    assert log.names() == ["loss"]
    assert log.newest_step == 4


def test_lines_of_one_step_are_merged_and_nested_values_named_by_their_path(tmp_path: Path) -> None:
    table = {"columns": COLUMNS, "data": group_rows(2)}
    lines = [
        '{"step": 2, "a": {"b": {"c": 1}}, "none": null}',
        "",
        json.dumps({"step": 2, "d": True, "grad_norm/all/group_rv_table": table, "text": "x"}),
        '{"step": 1, "d": 0.5}',
    ]
    with pytest.warns(GradiometerWarning, match="steps fall back"):
        log = read_jsonl(written(tmp_path / "a.jsonl", *lines))
    assert log.names() == ["a/b/c", "d"]
    assert log.series("d")[0].tolist() == [1, 2]
    assert log.table("grad_norm/all/group_rv_table", 2).content == table
    assert log.left_out == ("text",)


def test_nan_is_nan_however_it_is_spelled_and_null_is_missing(tmp_path: Path) -> None:
    lines = [
        '{"step": 0, "x": NaN, "y": null}',
        '{"step": 1, "x": "NaN", "y": -Infinity}',
        '{"step": 2, "x": "Infinity"}',
    ]
    log = read_jsonl(written(tmp_path / "a.jsonl", *lines))
    x = log.series("x")[1]
    assert math.isnan(x[0])
    assert math.isnan(x[1])
    assert x[2] == math.inf
    assert log.series("y")[0].tolist() == [1]


def test_a_line_cut_off_by_a_crash_is_skipped_and_said(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"step": 0, "x": 1}', '{"step": 1, "x', end="")
    with pytest.warns(GradiometerWarning, match="line 2: the last line is cut off"):
        assert read_jsonl(path).series("x")[0].tolist() == [0]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"step": "one"}'], "one of _step, step, global_step"),
        (['{"step": 1.5}'], "no column that counts the steps"),
        (['{"loss": 1}'], "one set of values and not a curve"),
        (["{cut"], "line 1 is not JSON"),
        (["[1, 2]"], "line 1 must be a JSON object and is list"),
        ([""], "it is empty"),
        (['{"step": NaN}'], "no column that counts the steps"),
        (['{"step": 1e300}'], "no column that counts the steps"),
        ([f'{{"step": -{"9" * 400}}}'], "400 digits"),
        (
            ['{"step": 0}', f'{{"step": 1, "a": {{"b": -{"9" * 400}}}}}'],
            "line 2: a/b has 400 digits, too large",
        ),
    ],
)
def test_a_jsonl_that_is_no_log_is_an_error_that_says_why(
    tmp_path: Path, lines: list[str], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        read_jsonl(written(tmp_path / "a.jsonl", *lines))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("{oops", "1 line skipped that are no JSON object, the first is line 2"),
        ("[1, 2]", "1 line skipped that are no JSON object"),
        (nested(3000), "1 line skipped that are no JSON object"),
        ('{"step": 1e400, "x": 5}', "1 line without a step .step. skipped, the first is line 2"),
        (f'{{"step": {2**63}, "x": 5}}', "1 line without a step"),
        (f'{{"step": 1, "a": {"9" * 5000}}}', "1 line skipped that are no JSON object"),
    ],
)
def test_a_line_that_cannot_be_read_is_said_and_the_others_are_read(
    tmp_path: Path, broken: str, says: str
) -> None:
    lines = ['{"step": 0, "x": 1}', broken, *(f'{{"step": {n}, "x": 2}}' for n in range(2, 40))]
    with pytest.warns(GradiometerWarning, match=says):
        log = read_jsonl(written(tmp_path / "a.jsonl", *lines))
    assert log.steps()["step"].tolist() == [0, *range(2, 40)]


def test_values_at_every_depth_are_read_or_refused_with_their_line(tmp_path: Path) -> None:
    assert read_jsonl(written(tmp_path / "a.jsonl", nested(50))).names() == ["x" + "/a" * 50]
    outcomes = set()
    for depth in range(100, 1500, 50):
        path = written(tmp_path / "a.jsonl", '{"step": 0}', nested(depth))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                names = read_jsonl(path).names()
            outcomes.add("read" if names == ["x" + "/a" * depth] else "wrong")
        except (UsageError, GradiometerWarning) as problem:
            outcomes.add(str(problem).removeprefix(f"{path}, ").partition(":")[0])
    assert outcomes == {"read", "line 2"}


def test_the_largest_step_and_value_are_read(tmp_path: Path) -> None:
    largest = int(np.finfo(np.float64).max)
    line = json.dumps({"step": 2**63 - 1, "x": largest, "y": -largest, "z": True})
    with pytest.warns(GradiometerWarning, match="steps fall back"):
        log = read_jsonl(written(tmp_path / "a.jsonl", line, f'{{"step": {-(2**63)}, "x": 1}}'))
    assert log.series("x")[0].tolist() == [-(2**63), 2**63 - 1]
    assert log.series("y")[1].tolist() == [-float(largest)]


def test_a_log_from_anywhere_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a step of 19 digits does not fit into 64 bits"):
        Log(tmp_path / "x", name="x", run_id="x", rows=[(2**63, {"a": 1})])
    with pytest.raises(UsageError, match="x, step 3: a/b has 400 digits, too large for a float"):
        Log(tmp_path / "x", name="x", run_id="x", rows=[(3, {"a": {"b": 10**399}})])


def test_lines_without_a_step_among_others_are_said(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"config": {}}', '{"step": 1, "x": 1}')
    with pytest.warns(GradiometerWarning, match="1 line without a step"):
        assert read_jsonl(path).names() == ["x"]


def test_a_log_has_the_reading_interface_of_a_run(tmp_path: Path) -> None:
    log = read_jsonl(written(tmp_path / "a.jsonl", '{"step": 1, "loss": 1}'))
    assert {name for name in dir(Run) if not name.startswith("_")} - set(dir(log)) == set()
    assert log.steps()["step"].tolist() == [1]
    assert np.isnan(log.steps()["wall_time"]).all()
    assert (log.events(), log.findings(), log.vector_names()) == ([], [], [])
    for missing in (
        lambda: log.vector_steps("x"),
        lambda: log.vector("x", 1),
        lambda: log.cosine(1, 2),
    ):
        with pytest.raises(UnknownName, match="unknown vector"):
            missing()
    with pytest.raises(UnknownName, match="unknown series 'los'; did you mean 'loss'"):
        log.series("los")
    with pytest.raises(UnknownName, match="unknown table 'x'"):
        log.table("x")


def test_the_summaries_of_a_log_are_those_of_the_same_numbers_in_a_run(tmp_path: Path) -> None:
    lines = [
        '{"step": 3, "a": 1.5, "b": NaN, "c": Infinity, "d": Infinity}',
        '{"step": 1, "a": -2, "b": NaN, "c": 1, "d": -Infinity}',
        '{"step": 2, "a": NaN}',
    ]
    with pytest.warns(GradiometerWarning, match="steps fall back"):
        log = read_jsonl(written(tmp_path / "a.jsonl", *lines))
    import_log(log, tmp_path / "run")
    with load(tmp_path / "run") as run:
        # repr, because NaN is not equal to itself
        assert repr(log.summaries()) == repr(run.summaries())
        assert log.steps().keys() == run.steps().keys()


def test_gm_load_opens_a_run_and_every_log(tmp_path: Path) -> None:
    import gradiometer as gm

    with Writer(tmp_path / "run") as writer:
        writer.put(Row(step=4, wall_time=0.0, values={"loss": 1.0}))
        writer.flush()
        for path in (tmp_path / "run", tmp_path / "run" / "run.db"):
            with gm.load(path) as run:
                assert isinstance(run, gm.Run)
    with gm.load(written(tmp_path / "a.jsonl", '{"step": 4, "loss": 1}')) as log:
        assert isinstance(log, gm.Log)
        assert repr(log) == f"Log('{tmp_path / 'a.jsonl'}')"
        assert log.newest_step == gm.load(tmp_path / "run").newest_step == 4
    with pytest.raises(RunNotFound, match=r"no run at \S+rum; did you mean '.*run'"):
        gm.load(tmp_path / "rum")


def test_loading_the_file_of_a_run_that_this_process_writes_leaves_its_locks(
    tmp_path: Path, execute: Any
) -> None:
    """Closing any second descriptor of the file would drop them, and another process could then
    rewrite it."""
    import gradiometer as gm

    with Writer(tmp_path / "run") as writer:
        writer.put(Row(step=4, wall_time=0.0, values={"loss": 1.0}))
        writer.flush()
        for path in (tmp_path / "run", tmp_path / "run" / "run.db"):
            gm.load(path).close()
        asked = """
        import sqlite3
        db = sqlite3.connect(folder / "run.db", timeout=0, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError as problem:
            print(problem)
        """
        assert execute(asked, tmp_path / "run").stdout == "database is locked\n"


def test_what_is_there_decides_how_it_is_opened(tmp_path: Path) -> None:
    with Writer(tmp_path / "run", facts={"seed": 7}) as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
    assert isinstance(open_log(tmp_path / "run"), Run)
    assert isinstance(open_log(tmp_path / "run" / "run.db"), Run)
    assert isinstance(open_log(written(tmp_path / "train.log", '{"step": 1, "x": 2}')), Log)
    with pytest.raises(NotARun, match="folder of runs"):
        open_log(tmp_path)
    with pytest.raises(NotARun, match="not a run"):
        open_log(written(tmp_path / "notes.txt", "hello"))
    with pytest.raises(RunNotFound, match="no run at"):
        open_log(tmp_path / "nope")


def test_the_id_of_a_run_stays_when_it_is_moved_and_differs_between_runs(tmp_path: Path) -> None:
    ids = []
    for place, started in (("a", "today"), ("b", "today"), ("c", "tomorrow")):
        with Writer(tmp_path / place / "run", facts={"seed": 7, "started": started}) as writer:
            writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
        with open_log(tmp_path / place / "run") as run:
            ids.append(identify(run))
    assert ids[0] == ids[1] != ids[2]
    assert len(ids[0]) == 8
    path = written(tmp_path / "log.jsonl", '{"step": 1, "x": 1}')
    before = identify(open_log(path))
    path.write_text(path.read_text() + '{"step": 2, "x": 1}\n')
    assert identify(open_log(path)) == before
