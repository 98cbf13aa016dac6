"""Changing runs from the page: only when it is allowed, only for our own page, never for good."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from gradiometer.dashboard.app import create_app
from gradiometer.dashboard.manage import BIN
from gradiometer.records import Row
from gradiometer.store.run_notes import RunNotes, read_notes
from gradiometer.store.writer import Writer

OURS = {"X-Gradiometer": "1"}


def write_run(folder: Path, *, age: float = 1000.0) -> None:
    with Writer(folder) as writer:
        writer.put(Row(step=0, wall_time=1e9, values={"reward": 1.0}))
    when = time.time() - age
    os.utime(folder / "run.db", (when, when))


def client_of(root: Path, *, write: bool = True, **given: Any) -> TestClient:
    return TestClient(create_app(root, write=write, **given), base_url="http://127.0.0.1:8765")


def manage(client: TestClient, headers: Any = OURS, **content: Any) -> Any:
    return client.post("/manage.json", json=content, headers=headers)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "deep/b"):
        write_run(tmp_path / name)
    return tmp_path


def test_nothing_can_be_changed_unless_it_is_served_to_be(root: Path) -> None:
    client = client_of(root, write=False)
    refused = manage(client, action="edit", runs=["a"], name="x")
    assert refused.status_code == 405
    assert "--write" in refused.json()["message"]
    assert client.get("/table.json").json()["write"] is False
    assert client_of(root).get("/table.json").json()["write"] is True
    assert read_notes(root / "a") == RunNotes()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**OURS, "Origin": "http://evil.example"},
        {**OURS, "Origin": "null"},
        {**OURS, "Origin": "http://127.0.0.1:9999"},
        {**OURS, "Sec-Fetch-Site": "cross-site"},
        {**OURS, "Sec-Fetch-Site": "same-site"},
        {**OURS, "Content-Type": "text/plain"},
        {**OURS, "Host": "rebound.example"},
    ],
    ids=str,
)
def test_pages_of_other_sites_change_nothing(root: Path, headers: dict[str, str]) -> None:
    refused = manage(client_of(root), headers, action="edit", runs=["a"], name="x")
    assert refused.status_code == 403
    assert read_notes(root / "a") == RunNotes()
    fine = {**OURS, "Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin"}
    assert manage(client_of(root), fine, action="edit", runs=["a"], name="x").status_code == 200
    assert read_notes(root / "a").name == "x"


def test_only_one_address_takes_a_change_and_a_token_is_needed_where_there_is_one(
    root: Path,
) -> None:
    client = client_of(root)
    for method, path in (("POST", "/table.json"), ("PUT", "/manage.json"), ("DELETE", "/runs")):
        assert client.request(method, path, json={}, headers=OURS).status_code == 405
    far = client_of(root, hosts=None, token="a long token")
    assert manage(far, action="edit", runs=["a"], name="x").status_code == 401
    bearer = {**OURS, "Authorization": "Bearer a long token"}
    assert manage(far, bearer, action="edit", runs=["a"], name="x").status_code == 200


def test_names_tags_and_notes_are_kept_beside_the_run(root: Path) -> None:
    client = client_of(root)
    manage(client, action="edit", runs=["a"], name=" the  best ", note="see\x1b[31m it")
    manage(client, action="edit", runs=["a", "deep/b"], add_tags=["baseline", "x"])
    manage(client, action="edit", runs=["a"], remove_tags=["x"], archived=True)
    assert read_notes(root / "a") == RunNotes(
        name="the best", tags=("baseline",), note="see[31m it", archived=True
    )
    assert read_notes(root / "deep" / "b").tags == ("baseline", "x")
    rows = {row["id"]: row for row in client.get("/table.json").json()["rows"]}
    assert (rows["a"]["name"], rows["a"]["archived"]) == ("the best", True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"action": "burn", "runs": ["a"]}, "one of"),
        ({"action": "edit", "runs": []}, "list of ids"),
        ({"action": "edit", "runs": ["../a"]}, "unknown"),
        ({"action": "edit", "runs": ["a"], "tags": ["two words"]}, "one word"),
        ({"action": "edit", "runs": ["a"], "path": "/x"}, "cannot be changed"),
        ({"action": "edit", "runs": ["a"], "add_tags": 3}, "list of words"),
        ({"action": "undo", "ticket": "../.."}, "nothing in the bin"),
    ],
)
def test_what_cannot_be_done_is_said(root: Path, asked: dict[str, Any], said: str) -> None:
    refused = manage(client_of(root), **asked)
    assert refused.status_code in (400, 404)
    assert said in refused.json()["message"]


def test_a_deleted_run_lies_in_the_bin_and_comes_back(root: Path) -> None:
    client = client_of(root)
    (root / "deep" / "b" / "weights.pt").write_bytes(b"1")
    before = (root / "deep" / "b" / "run.db").read_bytes()
    gone = manage(client, action="delete", runs=["deep/b", "a"]).json()
    assert not (root / "a").exists()
    assert client.get("/table.json").json()["rows"] == []
    assert len(list((root / BIN / gone["ticket"]).iterdir())) == 3
    write_run(root / "a")  # another one under its name: nothing is overwritten
    refused = manage(client, action="undo", ticket=gone["ticket"])
    assert (refused.status_code, "there again" in refused.json()["message"]) == (400, True)
    (root / "a").rename(root / "c")
    assert manage(client, action="undo", ticket=gone["ticket"]).json()["changed"] == ["deep/b", "a"]
    assert (root / "deep" / "b" / "run.db").read_bytes() == before
    assert (root / "deep" / "b" / "weights.pt").exists()
    assert not list((root / BIN).iterdir())


def test_a_bin_that_somebody_else_wrote_moves_nothing_out_of_the_folder(root: Path) -> None:
    ticket = root / BIN / "planted"
    (ticket / "0").mkdir(parents=True)
    (ticket / "0" / "key").write_text("mine")
    for moved in (
        {"run": "a", "from": "../key", "to": "0/key"},
        {"run": "a", "from": "key", "to": "../../a"},
    ):
        (ticket / "moved.json").write_text(json.dumps([moved]))
        refused = manage(client_of(root), action="undo", ticket="planted")
        assert refused.status_code == 400
        assert "outside" in refused.json()["message"]
    assert not (root.parent / "key").exists()
    assert (root / "a").exists()


def test_what_is_being_written_stays(root: Path) -> None:
    client = client_of(root)
    write_run(root / "fresh", age=1.0)
    with Writer(root / "held") as writer:
        writer.put(Row(step=0, wall_time=1e9, values={"reward": 1.0}))
        writer.flush()
        long_ago = time.time() - 1000
        for file in (root / "held").iterdir():
            os.utime(file, (long_ago, long_ago))
        for name in ("fresh", "held"):
            refused = manage(client, action="delete", runs=["a", name])
            assert (refused.status_code, name in refused.json()["message"]) == (400, True)
    assert (root / "a" / "run.db").exists()
