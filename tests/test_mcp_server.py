"""Runs for assistants: asked through a real client, in this process and over a pipe."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from forkserver import python
from mcp import Client, StdioServerParameters

from gradiometer.mcp_server import make_server
from gradiometer.records import Event, Row, Table
from gradiometer.store.writer import Writer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    rewards = np.linspace(0.0, 10.0, 600) + np.random.default_rng(0).normal(size=600)
    for name, lr in (("good", 1e-3), ("dead", 1e-4)):
        with Writer(root / name, facts={"config": {"lr": lr}}) as writer:
            for step, reward in enumerate(rewards):
                values = {"reward": float(reward), "x": float("nan") if step == 3 else 1.0}
                writer.put(Row(step=step, wall_time=float(step), values=values))
            if name == "dead":
                said = "the term 'entropy' has no gradient path to any watched parameter"
                detail = {"term": "entropy"}
                writer.put(Event(step=0, kind="dead-term", message=said, detail=detail))
    outside = root.parent / "outside"
    with Writer(outside / "secret") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"reward": 1.0}))
    (root / "link").symlink_to(outside)
    return root


def ask(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[tuple[bool, str]]:
    async def talk() -> list[tuple[bool, str]]:
        async with Client(server) as client:
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
        return [(bool(each.is_error), each.content[0].text) for each in answers]

    return anyio.run(talk)


def test_runs_are_listed_diagnosed_and_compared(folder: Path) -> None:
    calls = [
        ("list_runs", {}),
        ("diagnose", {"run": "dead"}),
        ("list_series", {"run": "good", "match": "rew"}),
        ("series", {"run": "good", "name": "reward", "points": 50}),
        ("compare", {"runs": ["good", "dead"]}),
    ]
    answers = ask(make_server(folder), *calls)
    assert [wrong for wrong, _ in answers] == [False] * len(calls)
    runs, found, names, series, compared = (json.loads(text) for _, text in answers)
    assert {run["id"] for run in runs["runs"]} == {"good", "dead"}
    assert found["findings"][0]["id"] == "dead-term"
    assert found["findings"][0]["fix"]
    assert found["checks"]["could_run"] > 0
    assert "skipped" not in found
    assert names["series"] == ["reward"]
    assert len(series["step"]) == len(series["mean"]) <= 50
    assert series["step"][-1] == 599
    assert compared["runs"]["dead"]["first_finding"] == "dead-term"
    assert compared["runs"]["good"]["ended"]["reward"]["last"] == pytest.approx(10.0, abs=4.0)
    (apart,) = compared["differences"]["differs"]
    assert (apart["name"], len(apart["values"])) == ("lr", 2)


def test_a_nan_is_a_word_and_a_mistake_says_what_there_is(folder: Path) -> None:
    (wrong, text), *mistakes = ask(
        make_server(folder),
        ("series", {"run": "good", "name": "x", "points": 500}),
        ("series", {"run": "good", "name": "rewrad"}),
        ("diagnose", {"run": "bad"}),
        ("diagnose", {"run": "../outside/secret"}),
        ("diagnose", {"run": "link/secret"}),
        ("wiring", {"run": "good"}),
        ("compare", {"runs": ["good"]}),
    )
    assert not wrong
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    said = ["reward", "unknown run", "unknown run", "unknown run", "no wiring", "2 to 20"]
    for (failed, text), words in zip(mistakes, said, strict=True):
        assert failed
        assert words in text
        assert "Traceback" not in text


def test_wiring_is_read(tmp_path: Path) -> None:
    row = {
        "name": "policy",
        "role": "policy",
        "coefficient": 1.0,
        "value": 0.5,
        "alive": True,
        "reaches": ["actor"],
        "named_by": "frame",
        "backward": 1,
    }
    content = {"loss": 0.5, "terms": [row], "additivity_error": 0.0, "backward": 1}
    with Writer(tmp_path / "run") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"grad/actor/norm/raw": 2.0}))
        writer.put(Table(step=0, name="wiring", content=content))
    ((wrong, text),) = ask(make_server(tmp_path), ("wiring", {"run": "run"}))
    assert not wrong
    assert json.loads(text)["terms"][0]["reaches"] == {"actor": 2.0}


@pytest.mark.slow
def test_an_assistant_starts_the_command_and_speaks_to_it(folder: Path) -> None:
    command = ["-m", "gradiometer", "mcp", str(folder)]
    started = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    ((wrong, text),) = ask(started, ("list_runs", {}))
    assert not wrong
    assert len(json.loads(text)["runs"]) == 2
    done = python("-m", "gradiometer", "mcp", str(folder / "nowhere"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a folder" in done.stderr
