"""Each sink is read back: every point it wrote, exactly."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import chdir, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.errors import GradiometerWarning
from gradiometer.records import Event, Evidence, Finding, Row, Table, Vector
from gradiometer.store import sinks
from gradiometer.store.exporters import await_wandb
from gradiometer.store.formats.wandb import wandb_files_in
from gradiometer.store.importers import load
from gradiometer.store.reader import Run
from gradiometer.store.sinks import Fanout, Start, chosen
from gradiometer.store.writer import Writer

STEP = "gradiometer/step"


FINDING = Finding(
    id="clip-always-active",
    title="Every step is clipped",
    severity="warn",
    basis="statistical",
    since_step=3,
    block="actor",
    evidence=(Evidence(series="grad/all/clip/active", reading="1.0"),),
    cause="the threshold is small",
    fix=("raise it",),
)
ODD = {3: math.nan, 5: math.inf, 6: -math.inf}


def measured(step: int) -> dict[str, float]:
    values = {
        "grad/all/norm/raw": step / 3,
        "grad/layer.net.0/norm/raw": 1e-30 * step,
        "grad/all/term/policy~value/cos": -0.1 * step,
        "grad_norm/bucket_1/task": ODD.get(step, 2.0**step),
    }
    return (
        values
        if step % 2
        else {name: value for name, value in values.items() if "layer" not in name}
    )


def feed(target: Fanout, steps: int = 8) -> None:
    """What a meter puts: measured rows, the user's scalars, late ones, tables, events, findings,
    sketches."""
    for step in range(steps):
        where = {
            "step": step,
            "wall_time": 1.7e9 + step,
            "env_steps": 100 * step,
            "rollout": step // 4,
        }
        target.put(Row(values=measured(step), **where))
        target.put(Row(values={"reward": 10.0 + step}, **where), logged=True)
        target.put(Vector(step=step, name="sketch/all", values=np.ones(4, dtype=np.float32)))
    target.put(Row(step=1, wall_time=1.7e9 + 1, values={"late": 0.25}))
    target.put(
        Table(
            step=2,
            name="grad_norm/bucket_1/group_rv_table",
            content={"columns": ["g", "rv"], "data": [[0, 0.5]]},
        )
    )
    target.put(
        Table(step=0, name="states", content={"net.0.weight": "finite", "net.0.bias": "missing"})
    )
    target.put(
        Event(
            step=3,
            kind="nonfinite",
            message="non-finite gradient, first in net.0",
            detail={"tensors": ["x"]},
        )
    )
    target.put(FINDING)


def expected(folder: Path) -> dict[str, dict[int, float]]:
    """What the run itself keeps of the same."""
    with Run(folder / "run.db") as run:
        return {
            name: dict(zip(*(part.tolist() for part in run.series(name)), strict=True))
            for name in run.names()
        }


def same(
    found: Mapping[str, Mapping[int, float]], wanted: Mapping[str, Mapping[int, float]]
) -> None:
    assert set(found) == set(wanted)
    for name in wanted:
        assert set(found[name]) == set(wanted[name]), name
        for step, value in wanted[name].items():
            assert found[name][step] == value or (
                math.isnan(value) and math.isnan(found[name][step])
            ), (name, step)


def series_of(log: Any) -> dict[str, dict[int, float]]:
    return {
        name: dict(zip(*(part.tolist() for part in log.series(name)), strict=True))
        for name in log.names()
    }


@contextmanager
def fan(folder: Path, *asked: str | sinks.Sink, **start: Any) -> Iterator[Fanout]:
    """A writer and sinks as `watch` makes them."""
    begun = Start(run=folder, facts={"config": {"lr": 0.1, "name": "x"}}, **start)
    found = chosen(asked, begun)
    both = Fanout(Writer(folder, overwrite=begun.overwrite, resume=begun.resume), found, begun)
    try:
        yield both
    finally:
        both.close()


WHERE = ("wall_time", "env_steps", "rollout", "epoch")


def test_jsonl_has_every_point_one_object_a_step(folder: Path) -> None:
    with fan(folder, "jsonl") as both:
        feed(both)
    assert both.dropped == {"jsonl": 0}
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = [
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        for line in lines
    ]
    steps = [line["step"] for line in found if "grad/all/norm/raw" in line]
    assert steps == list(range(8))
    assert next(line for line in found if line["step"] == 4) == {
        "step": 4,
        "wall_time": 1.7e9 + 4,
        "env_steps": 400,
        "rollout": 1,
        "reward": 14.0,
        **measured(4),
    }
    log = load(folder / "metrics.jsonl")
    same(
        {name: points for name, points in series_of(log).items() if name not in WHERE},
        expected(folder),
    )
    assert log.table("grad_norm/bucket_1/group_rv_table", 2).content == {
        "columns": ["g", "rv"],
        "data": [[0, 0.5]],
    }
    assert set(log.left_out) == {"gradiometer/event", "gradiometer/finding", "states"}
    (event,) = (line["gradiometer/event"] for line in found if "gradiometer/event" in line)
    assert event["detail"] == {"tensors": ["x"]}
    (finding,) = (line["gradiometer/finding"] for line in found if "gradiometer/finding" in line)
    assert finding["fix"] == ["raise it"]


def test_jsonl_of_a_resumed_run_holds_nothing_of_the_steps_that_were_taken_back(
    folder: Path,
) -> None:
    with fan(folder, "jsonl") as both:
        feed(both)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "half a li')
    with fan(folder, "jsonl", resume=4) as both:
        both.put(Row(step=5, wall_time=0.0, values={"grad/all/norm/raw": 55.0}))
    log = load(folder / "metrics.jsonl")
    assert log.newest_step == 5
    same(
        {name: points for name, points in series_of(log).items() if name not in WHERE},
        expected(folder),
    )
    with fan(folder, "jsonl", overwrite=True) as both:
        both.put(Row(step=0, wall_time=0.0, values={"epoch": 0.5, "step": 9.0}, epoch=3))
    only = '{"step": 0, "wall_time": 0.0, "epoch": 3, "epoch#2": 0.5, "step#2": 9.0}\n'
    assert (folder / "metrics.jsonl").read_text() == only


def test_tensorboard_has_every_point_in_32_bits_by_our_reader_and_by_its_own(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    with fan(folder, "tensorboard") as both:
        feed(both)
    assert both.dropped == {"tensorboard": 0}
    wanted = {
        name: {step: float(np.float32(value)) for step, value in points.items()}
        for name, points in expected(folder).items()
    }
    log = load(folder / "tensorboard")
    same(series_of(log), wanted)
    # In 32 bits the times of 2023 are two minutes apart, so these are read as the 64 bits they
    # have.
    assert log.steps()["wall_time"].tolist() == [1.7e9 + step for step in range(8)]
    theirs = EventAccumulator(
        str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}
    ).Reload()
    same(
        {tag: {e.step: e.value for e in theirs.Scalars(tag)} for tag in theirs.Tags()["scalars"]},
        wanted,
    )
    texts = {
        tag: tensor_util.make_ndarray(theirs.Tensors(tag)[0].tensor_proto).item().decode()
        for tag in theirs.Tags()["tensors"]
    }
    assert (
        texts["grad_norm/bucket_1/group_rv_table/text_summary"]
        == "| g | rv |\n| --- | --- |\n| 0 | 0.5 |"
    )
    assert "net.0.bias" in texts["states/text_summary"]
    assert texts["gradiometer/events/nonfinite/text_summary"].startswith("nonfinite: non-finite")
    assert "raise it" in texts["gradiometer/findings/clip-always-active/text_summary"]


def test_tensorboard_forgets_what_a_resume_took_back_and_says_what_32_bits_cannot_hold(
    folder: Path,
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with fan(folder, "tensorboard") as both:
        feed(both)
    time.sleep(
        1.1
    )  # TensorBoard orders files by second, and within one by a count without leading zeros
    with pytest.warns(GradiometerWarning) as said, fan(folder, "tensorboard", resume=4) as both:
        both.put(Row(step=5, wall_time=0.0, values={"grad/all/norm/raw": 1e300}))
        both.put(Table(step=5, name="long", content=["x" * 200_000]))
    assert [str(one.message) for one in said] == [
        "tensorboard: a number beyond 3.4e38 is an Inf there: it keeps 32 bits",
        "tensorboard: the table long is too long for a text there and is left out; the run has it",
    ]
    theirs = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [(e.step, e.value) for e in theirs.Scalars("grad/all/norm/raw")][-2:] == [
        (4, float(np.float32(4 / 3))),
        (5, math.inf),
    ]
    with fan(folder, "tensorboard", overwrite=True) as both:
        both.put(Row(step=0, wall_time=0.0, values={"a": 1.0}))
    assert series_of(load(folder / "tensorboard")) == {"a": {0: 1.0}}


def offline(path: Path) -> dict[str, dict[int, float]]:
    """An offline run by our own reader, over our step axis; what is the user's keeps W&B's."""
    log = load(path)
    by_row = series_of(log)
    ours = {int(row): int(step) for row, step in by_row.pop(STEP, {}).items()}
    return {
        name: {ours.get(row, row): value for row, value in points.items()}
        for name, points in by_row.items()
        if not name.startswith("_") and not name.startswith("gradiometer/")
    }


@pytest.fixture
def quiet_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    import wandb

    wandb.setup()  # whose settings are those of the whole process
    monkeypatch.setattr(wandb.setup().settings, "root_dir", str(tmp_path))
    monkeypatch.setattr(
        wandb.setup().settings, "mode", "offline"
    )  # another test may have set it up before us

    yield wandb
    if wandb.run is not None:
        wandb.run.finish()


def only_run(tmp_path: Path) -> Path:
    (path,) = (file.parent for file in wandb_files_in(tmp_path / "wandb"))
    await_wandb(path)  # W&B's process writes on for a moment after finish()
    return path


@pytest.mark.slow
def test_wandb_offline_has_every_point_over_a_step_of_its_own(
    folder: Path, tmp_path: Path, quiet_wandb: Any
) -> None:
    with fan(folder, sinks.wandb(project="p", mode="offline")) as both:
        feed(both)
        both.flush()
        assert quiet_wandb.run is None  # a run of ours is not the user's
    assert both.dropped == {"wandb": 0}
    path = only_run(tmp_path)
    same(offline(path), expected(folder))
    log = load(path)
    assert (log.name, log.facts["config"], log.facts["imported"]["project"]) == (
        "run",
        {"lr": 0.1, "name": "x"},
        "p",
    )
    assert log.table("grad_norm/bucket_1/group_rv_table").content == {
        "columns": ["g", "rv"],
        "data": [[0, 0.5]],
    }
    assert log.table("states").content["data"] == [
        ["net.0.weight", "finite"],
        ["net.0.bias", "missing"],
    ]
    assert set(log.left_out) == {"gradiometer/event", "gradiometer/finding"}
    blob = next(path.glob("*.wandb")).read_bytes()
    assert b"grad/layer\\.net\\.0/norm/raw" in blob  # defined over our step, its dots escaped


def test_wandb_joins_the_users_run_and_leaves_its_steps_and_scalars_alone(
    folder: Path, tmp_path: Path, quiet_wandb: Any
) -> None:
    with quiet_wandb.init(project="mine") as theirs:
        with fan(folder, "wandb") as both:
            for step in range(5):
                both.put(Row(step=step, wall_time=0.0, values=measured(step)))
                both.put(Row(step=step, wall_time=0.0, values={"reward": 1.0}), logged=True)
                theirs.log({"loss": float(step)})
                both.flush()
        theirs.log({"loss": 5.0})
    found = offline(only_run(tmp_path))
    assert list(found.pop("loss").values()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    wanted = expected(folder)
    del wanted["reward"]  # the user's loop sends it
    same(found, wanted)


def test_wandb_never_costs_a_user_who_counts_steps_a_row(
    folder: Path, tmp_path: Path, quiet_wandb: Any
) -> None:
    with quiet_wandb.init(project="mine") as theirs:
        theirs.log({"loss": -1.0}, step=0)
        with (
            pytest.warns(GradiometerWarning, match="were not sent") as said,
            fan(folder, "wandb") as both,
        ):
            for step in range(1, 6):
                for inner in range(4):  # four optimizer steps for each row of the user's
                    number = 4 * step + inner
                    both.put(
                        Row(step=number, wall_time=0.0, values={"grad/all/norm/raw": float(number)})
                    )
                both.flush()
                theirs.log({"loss": float(step)}, step=step)
        theirs.log({"loss": 6.0}, step=6)
    log = load(only_run(tmp_path))
    assert series_of(log)["loss"] == {0: -1.0, **{step: float(step) for step in range(1, 7)}}
    at, values = log.series("grad/all/norm/raw")
    assert at.tolist() == values.tolist()  # at our steps, though they travelled in other rows
    assert STEP not in log.names()
    assert len(at) >= 5
    assert f"{20 - len(at)} of them were not sent" in str(said[0].message)
    assert "attach=False" in str(said[0].message)


def test_wandb_beside_the_users_run_keeps_all_in_a_run_of_its_own(
    folder: Path, tmp_path: Path, quiet_wandb: Any
) -> None:
    with quiet_wandb.init(project="mine") as theirs:
        theirs.log({"loss": 1.0}, step=0)
        with fan(folder, sinks.wandb(attach=False)) as both:
            feed(both)
        theirs.log({"loss": 2.0}, step=1)
        own = Path(theirs.dir).parent
    (ours,) = (
        file.parent
        for file in wandb_files_in(tmp_path / "wandb")
        if file.parent.resolve() != own.resolve()
    )
    await_wandb(ours)
    await_wandb(own)
    same(offline(ours), expected(folder))
    assert offline(own) == {"loss": {0: 1.0, 1: 2.0}}


def test_wandb_without_a_key_is_told_and_asks_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    with (
        pytest.warns(GradiometerWarning, match=r"no API key.*offline"),
        fan(folder, sinks.wandb(mode="online")) as both,
    ):
        feed(both)
    assert both.dropped["wandb"] > 0
    with Run(folder / "run.db") as run:
        (event,) = run.events("sink-dropped")
        assert event.detail == {"sink": "wandb", "records": both.dropped["wandb"]}


@pytest.fixture(scope="module")
def empty_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables with nothing in them: it takes seconds to make them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.tracking import MlflowClient

        folder = tmp_path_factory.mktemp("mlflow")
        with chdir(folder):  # where it makes a folder for artifacts
            MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def mlflow_store(tmp_path: Path, empty_mlflow: Path) -> Iterator[tuple[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow
        from mlflow.tracking import MlflowClient

        before = mlflow.get_tracking_uri()
        shutil.copy(empty_mlflow, tmp_path / "mlflow.db")
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        mlflow.set_tracking_uri(uri)
        client = MlflowClient(uri)
        yield uri, client
        while mlflow.active_run() is not None:
            mlflow.end_run()
        mlflow.set_tracking_uri(before)


def history(client: Any, run_id: str, wanted: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    return {
        name: {
            point.step: point.value
            for point in client.get_metric_history(run_id, name.replace("~", ":"))
        }
        for name in wanted
    }


LARGEST = 1.7976931348623157e308


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_has_every_point_and_an_infinity_is_its_largest_number(
    folder: Path, mlflow_store: tuple[str, Any]
) -> None:
    uri, client = mlflow_store
    with (
        pytest.warns(GradiometerWarning) as said,
        fan(folder, sinks.mlflow(tracking_uri=uri)) as both,
    ):
        feed(both)
        many = {
            f"grad/layer.{number}/norm": float(number) for number in range(2500)
        }  # more than a batch may hold
        both.put(Row(step=9, wall_time=1.7e9, values=many))
    assert sorted(str(one.message) for one in said) == [
        "mlflow: an Inf is the largest number there, 1.8e308",
        (
            "mlflow: not every name is allowed there: grad/all/term/policy~value/cos is called"
            " grad/all/term/policy:value/cos"
        ),
    ]
    assert both.dropped == {"mlflow": 0}
    (run,) = client.search_runs([client.get_experiment_by_name("gradiometer").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params) == (
        "run",
        "FINISHED",
        {"lr": "0.1", "name": "x"},
    )
    wanted = {
        name: {
            step: max(-LARGEST, min(LARGEST, x)) if math.isinf(x) else x
            for step, x in points.items()
        }
        for name, points in expected(folder).items()
    }
    same(history(client, run.info.run_id, wanted), wanted)
    assert {name.replace(":", "~") for name in run.data.metrics} == set(wanted)
    assert run.data.tags["gradiometer.clip-always-active.actor"].startswith(
        "warn clip-always-active in actor"
    )
    kept = {
        file.path
        for folder_ in ("gradiometer", "gradiometer/states")
        for file in client.list_artifacts(run.info.run_id, folder_)
    }
    assert {"gradiometer/events.json", "gradiometer/states/0.json"} <= kept


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_joins_the_active_run_of_the_training_thread(
    folder: Path, mlflow_store: tuple[str, Any]
) -> None:
    import mlflow

    _, client = mlflow_store
    with mlflow.start_run() as theirs, warnings.catch_warnings():
        warnings.simplefilter("ignore", GradiometerWarning)
        with fan(folder, "mlflow") as both:
            feed(both)
        mlflow.log_metric("loss", 1.0, step=0)
        assert mlflow.active_run() is not None
    run = client.get_run(theirs.info.run_id)
    wanted = expected(folder)
    del wanted["reward"]
    assert {name.replace(":", "~") for name in run.data.metrics} == {*wanted, "loss"}
    assert (
        history(client, run.info.run_id, ["grad/all/norm/raw"])["grad/all/norm/raw"]
        == wanted["grad/all/norm/raw"]
    )
    assert client.get_experiment_by_name("gradiometer") is None  # no run of ours was made


TRACKIO = """
import sys, json
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_sinks import Fanout, Row, Start, Writer, chosen, feed, sinks
folder = Path(sys.argv[1])
attach = sys.argv[2] == "attach"
if attach:
    import os
    os.environ["HF_HUB_OFFLINE"] = "1"
    import trackio
    theirs = trackio.init(project="mine", name="theirs", embed=False)
    theirs.log({{"loss": 0.5}})
begun = Start(run=folder, facts={{"config": {{"lr": 0.1}}}})
both = Fanout(Writer(folder), chosen([sinks.trackio()], begun), begun)
feed(both)
both.close()
assert both.dropped == {{"trackio": 0}}, both.dropped
if attach:
    theirs.log({{"loss": 0.25}})
    theirs.finish()
"""


@pytest.mark.slow
@pytest.mark.parametrize("attach", ["attach", "alone"])
def test_trackio_has_every_point_in_its_file_without_a_server(
    folder: Path, tmp_path: Path, attach: str
) -> None:
    import os

    script = TRACKIO.format(tests=str(Path(__file__).parent))
    place = tmp_path / "trackio"
    told = {
        **os.environ,
        "TRACKIO_DIR": str(place),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(folder), attach],
        env=told,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (file,) = place.glob("*.db")
    found: dict[str, dict[int, float]] = {}
    others: dict[str, Any] = {}
    with closing(sqlite3.connect(file)) as db:
        for step, name, text in db.execute(
            "SELECT step, run_name, metrics FROM metrics ORDER BY id"
        ):
            assert name == ("theirs" if attach == "attach" else "run")
            for key, value in json.loads(text).items():
                if isinstance(value, dict):
                    others[key] = value
                elif not key.startswith("gradiometer/"):
                    found.setdefault(key, {})[step] = float(value)
        alerts = db.execute("SELECT title, level, step FROM alerts ORDER BY step, title").fetchall()
    wanted = expected(folder)
    if attach == "attach":
        del wanted["reward"]
        wanted["loss"] = {0: 0.5, 1: 0.25}  # the user's own counter goes on undisturbed
    same(found, wanted)
    assert others["grad_norm/bucket_1/group_rv_table"]["_value"] == [{"g": 0, "rv": 0.5}]
    assert alerts == [("clip-always-active", "warn", 3), ("nonfinite", "info", 3)]
