"""The page over a PostgreSQL database: the same runs, the same tabs, nothing read twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from gradiometer.dashboard.app import create_app
from gradiometer.dashboard.database_index import DatabaseIndex
from gradiometer.dashboard.run_table import RunTable
from gradiometer.dashboard.survey import answer_to
from gradiometer.errors import UnknownName
from gradiometer.records import Event, Row
from gradiometer.store import sinks
from gradiometer.store.postgres import Address, address_of, connect
from gradiometer.store.sinks import Fanout, Start


@pytest.fixture
def team(postgres: str) -> Iterator[Address]:
    """A database of its own with two runs, one of them still written."""
    whole = address_of(postgres)
    assert whole is not None
    name = f"page_{time.time_ns()}"
    ask(whole, f"CREATE DATABASE {name}")
    address = address_of(postgres.replace("/postgres", f"/{name}"))
    assert address is not None
    open_run = written(address, "team/ppo 7")
    written(address, "dqn").close()
    yield address
    open_run.close()
    ask(whole, f"DROP DATABASE {name} WITH (FORCE)")


def ask(address: Address, statement: str) -> None:
    db = connect(address, reading=False)
    db.execute(statement)
    db.close()


def written(address: Address, name: str) -> Fanout:
    start = Start(run=None, facts={"started": "2026-11-18T10:00:00+00:00", "config": {"lr": 0.1}})
    target = Fanout(None, [sinks.postgres(url=with_run(address, name))], start)
    for step in range(60):
        values = {"reward": step / 10, "entropy": 1.0, "grad/all/norm/raw": 2.0}
        target.put(Row(step=step, wall_time=1.7e9 + step, values=values))
    target.put(Event(step=3, kind="nonfinite", message="a NaN"))
    target.flush()
    return target


def with_run(address: Address, name: str) -> str:
    return f"{address.url}/{name.replace(' ', '%20')}"


class Here:
    """Reads in this process what a process of its own reads for a user."""

    def ask(self, question: dict[str, str], seconds: float) -> dict[str, object]:
        return answer_to(question)

    def kill(self) -> None: ...
    def close(self) -> None: ...


def test_runs_are_listed_opened_and_known_to_change(team: Address) -> None:
    index = DatabaseIndex(team)
    assert index.ids() == ["dqn", "team/ppo 7"]
    cards = {card.id: card for card in index.cards()}
    assert {card.newest_step for card in cards.values()} == {59}
    assert cards["dqn"].kind == "run"
    assert cards["dqn"].started == "2026-11-18T10:00:00+00:00"
    with index.open("team/ppo 7") as run:
        assert run.series("reward")[1][-1] == 5.9
    with pytest.raises(UnknownName, match="did you mean 'dqn'"), index.open("dqm"):
        pass
    before = index.signatures()
    again = Fanout(None, [sinks.postgres(url=with_run(team, "dqn"))], Start(run=None, resume=59))
    again.put(Row(step=60, wall_time=1.7e9, values={"reward": 6.0}))
    again.close()
    index._listed_at = 0.0
    after = index.signatures()
    assert [id for id in before if before[id] != after[id]] == ["dqn"]
    assert DatabaseIndex(team.of("dqn")).ids() == ["dqn"]


def test_every_tab_and_the_table_of_runs_are_served_without_the_password(team: Address) -> None:
    with TestClient(create_app(team), base_url="http://localhost") as client:
        runs = client.get("/runs.json").json()
        assert {run["id"] for run in runs["runs"]} == {"dqn", "team/ppo 7"}
        said = [client.get("/runs.json").text]
        for tab in ("overview", "gradients", "findings", "compare"):
            answer = client.get(f"/{tab}.json", params={"run": ["dqn", "team/ppo 7"]})
            assert answer.status_code == 200, answer.text
            said.append(answer.text)
        assert "reward" in said[1]
        missing = client.get("/overview.json", params={"run": "nope"})
        assert missing.status_code == 404
    assert "s3cret" not in "".join(said)


def test_the_table_of_runs_has_states_and_how_each_ended(team: Address, tmp_path: Path) -> None:
    table = RunTable(DatabaseIndex(team), cache=tmp_path, surveyor=Here)  # type: ignore[arg-type]
    table._begin = 0.0
    try:
        until = time.monotonic() + 60.0
        while (answer := table.answer()).unread and time.monotonic() < until:
            time.sleep(0.1)
            table.forget()
        rows = {row.id: row for row in answer.rows}
    finally:
        table.close()
    assert {row.problem for row in rows.values()} == {""}
    assert rows["dqn"].newest_step == 59
    assert rows["dqn"].seconds == 59.0
    assert rows["dqn"].folder == ""
    assert rows["team/ppo 7"].name == "ppo 7"
    assert {row.state for row in rows.values()} - {"", "unreadable"}
    assert answer.shared == {"lr": "0.1"}
    kept = "".join(file.read_text() for file in tmp_path.iterdir())
    assert "dqn" in kept
    assert "s3cret" not in kept
