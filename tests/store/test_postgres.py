"""Runs in PostgreSQL: what was sent is what is read, whoever is killed, resumes or comes second."""

from __future__ import annotations

import io
import itertools
import math
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.cli.main import run as gradiometer
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.errors import (
    GradiometerWarning,
    NotARun,
    RunDamaged,
    RunExists,
    RunNotFound,
    SchemaTooNew,
    UsageError,
)
from gradiometer.records import Event, Evidence, Finding, Row, Table, Vector
from gradiometer.store import sinks
from gradiometer.store.database import impatient
from gradiometer.store.facts import redact
from gradiometer.store.importers import load, logs_in
from gradiometer.store.postgres import (
    SCHEMA_VERSION,
    TABLES,
    PostgresRun,
    address_of,
    connect,
    create_tables,
    runs_at,
)
from gradiometer.store.sinks import Fanout, Start, chosen
from gradiometer.store.writer import Writer

SECRET = "s3cret"
FINDING = Finding(
    id="clip-always-active",
    title="Every step is clipped",
    severity="warn",
    basis="statistical",
    since_step=3,
    block="actor",
    evidence=(Evidence(series="grad/all/clip/active", reading="1.0"),),
    fix=("raise it",),
)
_numbers = itertools.count()


@pytest.fixture
def team(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a database of its own."""
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    name = f"team{next(_numbers)}_{time.time_ns()}"
    ask(postgres, f"CREATE DATABASE {name}")
    yield postgres.replace("/postgres", f"/{name}")
    ask(postgres, f"DROP DATABASE {name} WITH (FORCE)")


def ask(url: str, statement: str, *parameters: Any) -> list[Any]:
    address = address_of(url)
    assert address is not None
    db = connect(address, reading=False)
    try:
        cursor = db.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []
    finally:
        db.close()


def opened(url: str, name: str = "ppo-7", *, folder: Path | None = None, **told: Any) -> Fanout:
    start = Start(run=Path(name), facts=told.pop("facts", {}), **told)
    writer = None if folder is None else Writer(folder, facts=start.facts, keep=start.keep)
    return Fanout(writer, chosen([sinks.postgres(url=url)], start), start)


def command(*words: str) -> tuple[int, str, str]:
    """`gradiometer WORDS`: its code, and what it says."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = gradiometer(list(words))
    return code, out.getvalue(), err.getvalue()


def feed(target: Fanout, first: int = 0, last: int = 12) -> None:
    odd = {3: math.nan, 5: math.inf, 6: -math.inf}
    buffer = np.zeros(4, dtype=np.float32)
    for step in range(first, last):
        where = {"step": step, "wall_time": 1.7e9 + step, "env_steps": 100 * step}
        values = {"grad/all/norm/raw": step / 3, "odd": odd.get(step, 1e-300 * step)}
        target.put(Row(values=values, **where, rollout=step // 4))
        target.put(Row(values={"reward": 10.0 + step}, **where), logged=True)
        buffer += 1.0
        target.put(Vector(step=step, name="sketch/all", values=buffer))
    target.put(Row(step=first + 1, wall_time=1.7e9, values={"late": 0.25, "reward": -1.0}))
    target.put(Table(step=first + 2, name="states", content={"w": "finite", "x": math.nan}))
    target.put(Event(step=first + 4, kind="nonfinite", message="NaN in a \0 w", detail={"n": 1}))
    target.put(FINDING)


def everything(run: Any) -> dict[str, Any]:
    with run:
        return {
            "names": run.names(),
            "series": {name: [x.tolist() for x in run.series(name)] for name in run.names()},
            "steps": {name: column.tolist() for name, column in run.steps().items()},
            "ends": (run.first_step, run.newest_step),
            "tables": [table for name in run.table_names() for table in run.tables(name)],
            "vectors": [
                (name, step, run.vector(name, step).values.tolist())
                for name in run.vector_names()
                for step in run.vector_steps(name).tolist()
            ],
            "findings": run.findings(),
            "summaries": run.summaries(),
            "thinned": run.thinned("reward", 4).high.tolist(),
            "latest": run.latest("reward", np.array([-1, 4, 99])).tolist(),
            "where": run.where("env_steps", np.array([2, 98])).tolist(),
            "facts": {key: value for key, value in run.facts.items() if key != "schema_version"},
        }


def test_a_run_read_from_postgres_is_the_run_on_disk(team: str, tmp_path: Path) -> None:
    facts = {"seed": 7, "started": "2026-11-18T10:00:00+00:00", "config": {"lr": 0.1}}
    target = opened(team, folder=tmp_path / "ppo-7", facts=facts, keep=5)
    feed(target)
    target.flush()
    target.set_facts({"note": "later"})
    target.put(Row(step=11, wall_time=1.7e9 + 11, values={"reward": 99.0}))  # sent before: merged
    target.close()
    assert target.dropped == {"postgres": 0}
    ours, theirs = everything(load(tmp_path / "ppo-7")), everything(load(f"{team}/ppo-7"))
    assert repr(theirs) == repr(ours)
    assert [name for name, *_ in theirs["vectors"]] == ["sketch/all"] * 5
    assert theirs["latest"][1:] == [14.0, 99.0]
    with load(f"{team}/ppo-7") as run:
        (event,) = run.events()
        assert (event.step, event.kind, event.detail) == (4, "nonfinite", {"n": 1})
        assert event.message == "NaN in a \N{REPLACEMENT CHARACTER} w"
        assert run.name == "ppo-7"
        assert run.verify() == []
        with run.still():
            assert run.newest_step == 11


def test_the_doctor_says_the_same_of_both(team: str, tmp_path: Path) -> None:
    target = opened(team, folder=tmp_path / "ppo-7")
    for step in range(300):
        row = {"reward": step / 100, "entropy": 1.0, "grad/all/norm/raw": 1.0}
        target.put(Row(step=step, wall_time=float(step), values=row))
    target.close()
    here, there = diagnose(tmp_path / "ppo-7"), diagnose(f"{team}/ppo-7")
    assert there.verdict == here.verdict
    assert (there.looked, there.findings) == (here.looked, here.findings)


def test_a_resume_removes_what_lies_beyond_and_overwrite_all(team: str) -> None:
    target = opened(team)
    feed(target, 0, 12)
    target.close()
    with pytest.raises(RunExists, match="resume=11 goes on"):
        opened(team)
    target = opened(team, resume=2)
    target.put(Row(step=3, wall_time=3.0, values={"reward": 5.0}))
    target.close()
    with load(f"{team}/ppo-7") as run:
        assert run.steps()["step"].tolist() == [0, 1, 2, 3]
        assert run.series("reward")[1].tolist() == [10.0, -1.0, 12.0, 5.0]
        assert run.vector_steps("sketch/all").tolist() == [0, 1, 2]
        assert run.findings() == []
        (event,) = run.events()
        assert event.kind == "resumed"
        assert event.detail["steps"] == 9
    assert [run.newest_step for run in runs_at(address_of(team))] == [3]  # type: ignore[arg-type]
    target = opened(team, overwrite=True)
    target.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
    target.close()
    with load(f"{team}/ppo-7") as run:
        assert (run.names(), run.newest_step, run.events()) == (["loss"], 0, [])


def test_fifty_writers_begin_at_once_and_nothing_is_lost(team: str) -> None:
    start = Start(run=None)
    assert runs_of(team) is None
    targets = [
        Fanout(None, [sinks.postgres(url=f"{team}/run-{number}")], start) for number in range(50)
    ]
    for step, target in itertools.product(range(10), targets):
        row = {f"s{series}": float(step * series) for series in range(5)}
        target.put(Row(step=step, wall_time=float(step), values=row))
    for target in targets:
        target.flush()
    for target in targets:
        target.close()
    assert [target.dropped for target in targets] == [{"postgres": 0}] * 50
    assert ask(team, "SELECT count(*), sum(value) FROM points") == [(50 * 50, 50 * 45 * 10.0)]
    assert runs_of(team) == [(f"run-{n}", 9, True) for n in sorted(range(50), key=str)]


def test_a_writer_that_waited_for_another_s_tables_finds_them(team: str) -> None:
    address = address_of(team)
    assert address is not None
    first, second = (connect(address, reading=False) for _ in range(2))
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor(1) as pool:
        with first.transaction():
            first.execute("SELECT pg_advisory_xact_lock(hashtext('gradiometer tables'))")
            done = pool.submit(create_tables, second, address)
            while not ask(team, waiting)[0][0]:
                assert not done.done()
            first.execute(TABLES.format(version=SCHEMA_VERSION))
        assert done.result() is None
    for db in (first, second):
        db.close()
    assert runs_of(team) == []


def runs_of(url: str) -> list[tuple[str, int | None, bool]] | None:
    address = address_of(url)
    assert address is not None
    try:
        return [(run.name, run.newest_step, run.closed) for run in runs_at(address)]
    except NotARun:
        return None


KILLED = """
import itertools, sys, time
from gradiometer.records import Row
from gradiometer.store import sinks
from gradiometer.store.sinks import Fanout, Start
target = Fanout(None, [sinks.postgres(url=sys.stdin.readline().strip())], Start(run=None))
for step in itertools.count():
    target.put(Row(step=step, wall_time=time.time(), values={"loss": float(step)}))
    time.sleep(0.002)
"""


def test_a_killed_writer_leaves_whole_batches_and_its_run_can_be_resumed(team: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED)], stdin=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    print(f"{team}/killed", file=child.stdin, flush=True)
    seen: set[int | None] = set()
    while len(seen) < 3:  # three batches: they come as the training goes on, not at its end
        assert child.poll() is None
        seen |= {newest for _, newest, _ in runs_of(team) or () if newest is not None}
        time.sleep(0.02)
    child.kill()
    child.wait()
    child.stdin.close()
    with load(f"{team}/killed") as run:
        steps, values = run.series("loss")
        assert steps.tolist() == list(range(len(steps))) == values.tolist()
        assert len(steps) > max(step for step in seen if step is not None)
        assert run.newest_step == steps[-1]
    assert [closed for *_, closed in runs_of(team) or ()] == [False]
    target = opened(f"{team}/killed", resume=2)
    target.put(Row(step=3, wall_time=3.0, values={"loss": 3.0}))
    target.close()
    assert (target.dropped, runs_of(team)) == ({"postgres": 0}, [("killed", 3, True)])


TRAINING = """
import sys, time
import torch
import gradiometer as gm
url, side = sys.stdin.readline().split()
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
watched = {"run": None, "sinks": [gm.sinks.postgres(url=url)], "budget": None}
with gm.watch(model, optimizer, **watched), open(side, "a", buffering=1) as told:
    for step in range(20_000):  # an end, should nobody be left to kill it
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        told.write(f"{step} {time.time()}\\n")
        time.sleep(0.005)
"""


@pytest.fixture
def children() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Processes by name, which do not outlive their test."""
    found: dict[str, subprocess.Popen[str]] = {}
    yield found
    for child in found.values():
        child.kill()
        child.wait()


@pytest.mark.slow
def test_a_killed_training_has_lost_at_most_its_last_second(
    team: str, tmp_path: Path, children: dict[str, subprocess.Popen[str]]
) -> None:
    """Against what it wrote of its steps into a file, line by line; two kills, at any moment.

    Where the machine stood still meanwhile, the training shows it as a gap between two of its steps.
    """
    for number in range(2):
        name = f"killed-{number}"
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(TRAINING)], stdin=subprocess.PIPE, text=True
        )
        assert child.stdin is not None
        print(f"{team}/{name}", tmp_path / name, file=child.stdin, flush=True)
        child.stdin.close()
        children[name] = child
    for place, (name, child) in enumerate(children.items()):
        side = tmp_path / name
        while not side.exists() or len(side.read_text().splitlines()) < 200:
            assert child.poll() is None
            time.sleep(0.05)
        time.sleep(0.25 * place)
        child.kill()
        child.wait()
        told = [line.split(" ") for line in side.read_text().splitlines()]
        times = {int(step): float(moment) for step, moment in told}
        moments = list(times.values())
        stood_still = max(after - before for before, after in itertools.pairwise(moments))
        for series in ("grad/all/norm/raw", "grad/layer.2/norm/raw"):
            with load(f"{team}/{name}") as run:
                kept = run.series(series)[0].tolist()
            assert kept == list(range(len(kept)))
            lost = [moment for step, moment in times.items() if step >= len(kept)]
            assert max(moments) - min(lost, default=max(moments)) < 1.0 + stood_still


def test_a_second_writer_of_a_run_is_told_and_the_first_goes_on(team: str) -> None:
    first = opened(team)
    first.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
    first.flush()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        second = opened(team, resume=0)
        second.put(Row(step=1, wall_time=0.0, values={"loss": 2.0}))
        second.flush()
        second.close()
    assert second.dropped == {"postgres": 1}
    assert "is being written by another process" in str(said[0].message)
    first.put(Row(step=1, wall_time=0.0, values={"loss": 3.0}))
    first.close()
    with load(f"{team}/ppo-7") as run:
        assert run.series("loss")[1].tolist() == [1.0, 3.0]


def test_a_lost_connection_is_made_again_and_nothing_is_lost(team: str) -> None:
    target = opened(team)
    target.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
    target.flush()
    mine = "datname = current_database() AND pid != pg_backend_pid()"
    ask(team, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")
    target.put(Row(step=1, wall_time=0.0, values={"loss": 2.0, "new": 0.0}))
    target.close()
    assert target.dropped == {"postgres": 0}
    with load(f"{team}/ppo-7") as run:
        assert run.series("loss")[1].tolist() == [1.0, 2.0]


def test_what_cannot_be_kept_is_told_and_the_rest_is_kept(team: str) -> None:
    target = opened(team)
    target.put(Row(step=0, wall_time=0.0, values={"loss": "high", "fine": 1.0}))  # type: ignore[dict-item]
    with pytest.warns(GradiometerWarning, match="1 values were refused, first 'loss'"):
        target.close()
    with load(f"{team}/ppo-7") as run:
        assert run.names() == ["fine"]


def test_a_password_is_in_no_text_that_anybody_sees_or_keeps(team: str) -> None:
    given = sinks.postgres(url=team)
    target = opened(
        team, facts={"config": redact({"db": team, "more": f"postgresql://h/d?password={SECRET}"})}
    )
    target.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
    target.close()
    with load(f"{team}/ppo-7") as run:
        shown = [repr(given), repr(run), str(run.path), repr(address_of(team)), str(run.facts)]
    shown += [str(path) for path in logs_in(team)]
    code, told, _ = command("show", f"{team}/ppo-7")
    assert (code, "ppo-7: up to step 0, 1 points in 1 series" in told) == (0, True)
    code, *said = command("doctor", f"{team}/ppo-7", "--json")
    assert code == 0
    shown += [told, *said]
    for url in (f"{team}/nope", team.replace("%2Ftmp", "%2Fnowhere"), f"{team}?port=%zz"):
        code, *said = command("doctor", url)
        assert code == 2
        assert "postgresql://tester@%2F" in said[1]
        shown += said
    assert SECRET not in "".join(shown)


def test_what_is_wrong_with_a_database_is_told_in_words(team: str) -> None:
    def told(url: str, verb: str = "show", *more: str) -> str:
        code, _, said = command(verb, url, *more)
        assert code == 2, said
        return said

    assert "holds no runs: there is no schema `gradiometer`" in told(f"{team}/ppo-7")
    assert "holds no runs" in told(team, "doctor")
    assert "holds no runs" in told(team, "serve")
    assert "refuses the password" in told(team.replace(SECRET, "wrong"))
    assert "has no database 'nowhere': create it" in told(f"{team.rpartition('/')[0]}/nowhere/x")
    assert "Connection refused" in told("postgresql://127.0.0.1:1/db/run")
    assert "is the server running" in told("postgresql://127.0.0.1:1/db", "serve")
    opened(team).close()
    assert "is not a run but a database of 0 runs" in told(team)
    assert "--write changes the files of a folder" in told(team, "serve", "--write")
    target = opened(team)
    target.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
    target.close()
    assert "no run 'ppo-8'" in told(f"{team}/ppo-8")
    assert "did you mean 'ppo-7'?" in told(f"{team}/ppo-8")
    with pytest.raises(UsageError, match="no address of PostgreSQL"):
        chosen([sinks.postgres(url="db.lab/rl")], Start(run=None))
    with pytest.raises(RunNotFound):
        load(f"{team}/ppo-8")
    ask(team, "UPDATE about SET value = '2'")
    with pytest.raises(SchemaTooNew, match="pip install -U gradiometer"):
        load(f"{team}/ppo-7")


def test_a_reader_cannot_write_waits_for_ever_for_nothing_and_trusts_no_cell(team: str) -> None:
    import psycopg

    target = opened(team)
    feed(target)
    target.close()
    with load(f"{team}/ppo-7") as run:
        assert isinstance(run, PostgresRun)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            run._db.execute("DELETE FROM points")
    with impatient(0.05), load(f"{team}/ppo-7") as run, pytest.raises(UsageError, match="too long"):
        run._execute("SELECT pg_sleep(5)")  # type: ignore[union-attr]
    ask(team, "UPDATE tables SET json = '{'")
    ask(team, "ALTER TABLE steps ALTER epoch TYPE text")
    ask(team, "UPDATE steps SET epoch = 'first'")
    with load(f"{team}/ppo-7") as run:
        with pytest.raises(RunDamaged, match="a cell is not JSON"):
            run.table("states")
        with pytest.raises(RunDamaged, match="holds str where it should not"):
            run.steps()
    ask(team, "ALTER TABLE points ALTER step TYPE int")
    with load(f"{team}/ppo-7") as run, pytest.raises(RunDamaged, match="not a step and a number"):
        run.series("reward")
    ask(team, "ALTER TABLE series DROP COLUMN name")
    with load(f"{team}/ppo-7") as run, pytest.raises(RunDamaged, match="not those of Gradiometer"):
        run.names()


def test_an_address_is_read_from_an_url_a_path_and_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(given: str | Path) -> tuple[str, str]:
        found = address_of(given)
        assert found is not None
        return found.url, str(found)

    whole = "postgresql://me:pass@db.lab:6543/rl/team/ppo%207?sslmode=require"
    url = "postgresql://me:pass@db.lab:6543/rl?sslmode=require"
    shown = "postgresql://me@db.lab:6543/rl/team/ppo%207"
    assert read(whole) == (url, shown)
    assert address_of(whole).run == "team/ppo 7"  # type: ignore[union-attr]
    assert read(Path(shown)) == (url, shown)  # a path has one slash and no password
    assert address_of("runs/ppo-7") is address_of(Path("/runs")) is address_of("s3://a/b") is None
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.setenv("PGDATABASE", "rl")
    assert read("postgresql://") == ("postgresql:///", "postgresql://elsewhere/rl")
    assert read("postgres:///other/run") == (
        "postgresql:///other",
        "postgresql://elsewhere/other/run",
    )
