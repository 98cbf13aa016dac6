"""A sink that fails, hangs or is missing: told once, counted, and the training never waits for
it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from forkserver import python

from gradiometer.errors import GradiometerWarning, MissingExtra, UnknownName, UsageError
from gradiometer.records import Event, Row
from gradiometer.store import sinks
from gradiometer.store.reader import load
from gradiometer.store.sinks import Backend, Fanout, Sink, Start, chosen
from gradiometer.store.sinks import fanout as fanout_module
from gradiometer.store.sinks.sink import Note, Sent
from gradiometer.store.writer import Writer

Write = Callable[[Sequence[Sent]], None]


class Made(Backend):
    def __init__(self, write: Write, finish: Callable[[], None]) -> None:
        self._write, self._finish = write, finish

    def write(self, records: Sequence[Sent]) -> None:
        self._write(records)

    def close(self) -> None:
        self._finish()


@dataclass(frozen=True)
class MadeSink(Sink):
    """A real sink whose tracker is a function."""

    name: ClassVar[str] = "made"
    tracker: Write
    finish: Callable[[], None] = lambda: None
    user: Callable[[], Any] = lambda: None
    opened: Callable[[Any], None] = lambda user: None

    def check(self, start: Start) -> None:
        return None

    def users_run(self) -> Any:
        return self.user()

    def open(self, start: Start, users_run: Any, note: Note) -> Backend:
        self.opened(users_run)
        return Made(self.tracker, self.finish)


def row(step: int, size: int = 1) -> Row:
    return Row(
        step=step, wall_time=0.0, values={f"x{number}": float(step) for number in range(size)}
    )


def fanout(folder: Path, *made: Sink) -> Fanout:
    return Fanout(Writer(folder), made, Start(run=folder))


def kept(folder: Path) -> int:
    with load(folder) as run:
        return len(run.steps()["step"])


def raises(records: Sequence[Sent]) -> None:
    raise ConnectionError("the server is gone\nand a long story follows")


def test_a_tracker_that_raises_is_told_once_and_switched_off_and_the_run_has_everything(
    folder: Path,
) -> None:
    calls: list[int] = []

    def tracker(records: Sequence[Sent]) -> None:
        calls.append(len(records))
        raises(records)

    both = fanout(folder, MadeSink(tracker))
    with pytest.warns(GradiometerWarning) as said:
        for step in range(10):
            both.put(row(step))
            both.flush()
        both.close()
    assert [str(one.message) for one in said] == [
        "made cannot be written (ConnectionError: the server is gone); training and run go on"
        " without it"
    ]
    assert len(calls) == fanout_module.TRIES
    assert both.dropped == {"made": 10}
    assert kept(folder) == 10
    with load(folder) as run:
        (event,) = run.events("sink-dropped")
    assert (event.step, event.detail) == (9, {"sink": "made", "records": 10})


def test_a_tracker_that_recovers_goes_on(folder: Path) -> None:
    got: list[int] = []

    def tracker(records: Sequence[Sent]) -> None:
        if any(record.step in (2, 5) for record in records):  # type: ignore[union-attr]
            raises(records)
        got.extend(record.step for record in records)  # type: ignore[union-attr]

    both = fanout(folder, MadeSink(tracker))
    with pytest.warns(GradiometerWarning) as said:
        for step in range(8):
            both.put(row(step))
            both.flush()
        both.close()
    assert len(said) == 1
    assert got == [0, 1, 3, 4, 6, 7]
    assert both.dropped == {"made": 2}


@pytest.mark.parametrize("where", ["open", "users_run", "close"])
def test_a_fault_at_the_beginning_or_the_end_is_told_too(folder: Path, where: str) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("no")

    names = {"open": "opened", "users_run": "user", "close": "finish"}
    both = fanout(folder, MadeSink(lambda records: None, **{names[where]: fault}))
    with pytest.warns(
        GradiometerWarning, match=r"made cannot be written \(RuntimeError: no\)"
    ) as said:
        both.put(row(0))
        both.put(row(1))
        both.close()
    assert len(said) == 1
    assert both.dropped == {"made": 0 if where == "close" else 2}
    assert kept(folder) == 2


def test_a_tracker_that_hangs_never_holds_up_put_and_close_waits_only_so_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout_module, "CAPACITY", 1000)
    monkeypatch.setattr("gradiometer.store.sinks.fanout.PATIENCE_SECONDS", 0.5)
    held, entered = threading.Event(), threading.Event()

    def tracker(records: Sequence[Sent]) -> None:
        entered.set()
        held.wait()

    other: list[Sent] = []
    both = fanout(folder, MadeSink(tracker), MadeSink(other.extend))
    both.put(row(0, 10))
    assert entered.wait(30)
    # The tracker holds its thread until the test ends: if put() waited for it, this would never
    # return.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(1, 201):
            both.put(row(step, 10))
            if step % 50 == 0:
                both.flush()  # the healthy sink is not held up by the sick one, nor is the run
        both.close()
        both.close()
    try:
        messages = [str(one.message) for one in said]
        assert sum("slower than the training" in message for message in messages) == 1
        assert sum("could not be flushed" in message for message in messages) == 1
        assert len(messages) == 2
        assert [record.step for record in other] == list(range(201))  # type: ignore[union-attr]
        assert kept(folder) == 201
        assert both.dropped == {
            "made": 201,
            "made#2": 0,
        }  # nothing arrived at the first, and all of it is counted
        with load(folder) as run:
            assert run.events("sink-dropped")[0].detail["records"] == 201
    finally:
        held.set()


def test_put_returns_while_the_tracker_is_still_busy(folder: Path) -> None:
    release, order = threading.Event(), []

    def tracker(records: Sequence[Sent]) -> None:
        release.wait(30)
        order.append("tracker")

    both = fanout(folder, MadeSink(tracker))
    for step in range(100):
        both.put(row(step))
    order.append("training")
    release.set()
    both.close()
    assert order[0] == "training"
    assert threading.current_thread().name == "MainThread"


def test_a_tracker_never_runs_on_the_training_thread_nor_on_the_writers(folder: Path) -> None:
    names: set[str] = set()
    both = fanout(folder, MadeSink(lambda records: names.add(threading.current_thread().name)))
    both.put(row(0))
    both.flush()
    both.close()
    assert names == {"gradiometer-made"}


def test_an_event_before_the_first_row_does_not_open_a_run_beside_the_users(folder: Path) -> None:
    users: list[str | None] = [None]
    found: list[Any] = []
    got: list[Sent] = []
    both = fanout(folder, MadeSink(got.extend, user=lambda: users[0], opened=found.append))
    both.put(Event(step=0, kind="experts", message="found"))
    time.sleep(
        2 * fanout_module.SEND_SECONDS
    )  # long enough for the thread to have opened it, if it did not wait
    users[0] = "the trainer's run, opened after watch()"
    both.put(row(0))
    both.close()
    assert found == ["the trainer's run, opened after watch()"]
    assert [type(record).__name__ for record in got] == ["Event", "Row"]


def test_a_forked_child_sends_nothing_and_its_end_leaves_the_parents_sink_alone(
    folder: Path,
) -> None:
    got: list[int] = []
    both = fanout(folder, MadeSink(lambda records: got.extend(record.step for record in records)))  # type: ignore
    both.put(row(0))
    both.flush()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python's own about forking beside threads
        child = os.fork()
    if child == 0:
        both.put(row(1))
        both.flush()
        both.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    both.put(row(2))
    both.close()
    both.close()
    assert got == [0, 2]
    assert kept(folder) == 2


def test_what_is_put_after_the_end_is_counted_and_not_sent(folder: Path) -> None:
    got: list[Sent] = []
    both = Fanout(None, [MadeSink(got.extend)], Start(run=None))
    both.put(row(0))
    both.close()
    both.put(row(1))
    assert len(got) == 1
    assert both.dropped == {"made": 1}
    assert both.folder is None


FULL = """
import resource, signal, sys, warnings
from pathlib import Path
from gradiometer.records import Row
from gradiometer.store.sinks import Fanout, Start, chosen, sinks
place, kind = Path(sys.argv[1]), sys.argv[2]
sink = sinks.jsonl(path=place / "x.jsonl") if kind == "jsonl" else sinks.tensorboard(folder=place)
start = Start(run=None)
both = Fanout(None, chosen([sink], start), start)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
warnings.simplefilter("always")
for step in range(50):
    both.put(Row(step=step, wall_time=1.0, values={f"x{n}": float(step) for n in range(10)}))
    both.flush()
both.close()
print(both.dropped[sink.name])
"""


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard"])
def test_a_full_disk_leaves_whole_records_only(tmp_path: Path, kind: str) -> None:
    done = python("-c", FULL, tmp_path, kind)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be written (OSError") == 1
    dropped = int(done.stdout)
    assert 0 < dropped < 50
    (file,) = tmp_path.iterdir()
    if kind == "jsonl":
        assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == list(
            range(50 - dropped)
        )
    from gradiometer.store.importers import load as open_any

    log = open_any(file)  # a half record would be a warning, which is an error here
    steps, values = log.series("x9")
    assert steps.tolist() == values.tolist() == list(range(50 - dropped))


EXIT = """
import sys
from pathlib import Path
from gradiometer.records import Row
from gradiometer.store.sinks import Fanout, Start, chosen, sinks
folder = Path(sys.argv[1])
start = Start(run=folder)
if sys.argv[2] == "wandb":
    import wandb
    sink = sinks.wandb(mode="offline", init={"dir": sys.argv[1]})
else:
    sink = sinks.jsonl(path=folder / "x.jsonl")
both = Fanout(None, chosen([sink], start), start)
for step in range(20):
    both.put(Row(step=step, wall_time=1.0, values={"x": float(step)}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "wandb"])
def test_a_script_that_ends_without_closing_still_sends_what_it_put(
    tmp_path: Path, kind: str
) -> None:
    told = {**os.environ, "WANDB_SILENT": "true"}
    call = [sys.executable, "-W", "error", "-c", EXIT, str(tmp_path), kind]
    done = subprocess.run(call, capture_output=True, text=True, env=told)
    assert (done.returncode, done.stderr) == (0, "")
    from gradiometer.store.exporters import await_wandb
    from gradiometer.store.formats.wandb import wandb_files_in
    from gradiometer.store.importers import load as open_any

    if kind == "wandb":
        (file,) = wandb_files_in(tmp_path / "wandb")
        await_wandb(file.parent)
    else:
        file = tmp_path / "x.jsonl"
    assert open_any(file).series("x")[1].tolist() == list(map(float, range(20)))


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_missing_package_is_told_before_anything_is_made(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(
        sys.modules, name, None
    )  # what Python itself keeps of a package that is not there
    with pytest.raises(
        MissingExtra, match=rf'the sink {name} needs {name}.*pip install "gradiometer\[trackers\]"'
    ):
        chosen([name], Start(run=tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_wrong_sinks_are_told_before_anything_is_made(tmp_path: Path) -> None:
    start, alone = Start(run=tmp_path / "run"), Start(run=None)
    for asked, begun, error, says in [
        (["wanbd"], start, UnknownName, "did you mean 'wandb'"),
        ([3], start, UsageError, "a sink is a name"),
        (["jsonl", "jsonl"], start, UsageError, "given twice"),
        ([sinks.wandb(mode="ofline")], start, UsageError, "online, offline or disabled"),  # type: ignore[arg-type]
        (["jsonl"], alone, UsageError, "needs path="),
        (["tensorboard"], alone, UsageError, "needs folder="),
        ([sinks.jsonl(path=tmp_path)], start, UsageError, "is a folder"),
    ]:
        with pytest.raises(error, match=says):
            chosen(asked, begun)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x.jsonl").write_text('{"step": 0}\n')
    (tmp_path / "events.out.tfevents.1.host.1.0.gradiometer").write_bytes(b"")
    with pytest.raises(UsageError, match="already exists"):
        chosen([sinks.jsonl(path=tmp_path / "x.jsonl")], start)
    with pytest.raises(UsageError, match="event files of another run"):
        chosen([sinks.tensorboard(folder=tmp_path)], start)
    with pytest.raises(UsageError, match="is a file"):
        chosen([sinks.tensorboard(folder=tmp_path / "x.jsonl")], start)
    assert chosen("jsonl", start) == (sinks.jsonl(),)
    assert chosen([], start) == ()


def test_no_tracker_is_imported_until_it_is_asked_for() -> None:
    code = "import sys, gradiometer.store.sinks; print({m.partition('.')[0] for m in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    for name in ("torch", "wandb", "mlflow", "trackio", "tensorboard", "pyarrow"):
        assert repr(name) not in loaded
