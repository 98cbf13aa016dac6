"""`gradiometer replay` as a user types it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from forkserver import Done, python

from gradiometer.maths.recipes import RECIPES, Rollout
from gradiometer.records import Row, Table
from gradiometer.store.writer import Writer

PLAIN = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


def written(folder: Path, recipe: str) -> Path:
    """A run with one rollout whose credit that recipe made."""
    rng = np.random.default_rng(5)
    ends = (rng.random((80, 2)) < 0.1).astype(np.float64)
    values = rng.normal(size=(81, 2)).cumsum(0)
    rollout = Rollout(
        rewards=rng.normal(size=(80, 2)),
        ends=ends,
        cuts=np.zeros_like(ends),
        values=values[:-1],
        next_values=values[1:],
    )
    made = RECIPES[recipe].advantages(rollout, 0.99, 0.95).reshape(-1)
    content = {
        "rewards": rollout.rewards.tolist(),
        "ends": ends.tolist(),
        "cuts": rollout.cuts.tolist(),
        "values": values[:-1].tolist(),
        "next_values": values[1:].tolist(),
        "credit": (made / len(made)).tolist(),
        "rows": list(range(len(made))),
        "calls": [0] * len(made),
        "places": rng.permutation(len(made)).tolist(),
    }
    with Writer(folder) as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
        writer.put(Table(step=0, name="replay", content=content))
    return folder


def test_a_wrong_recipe_is_named_with_what_it_explains(tmp_path: Path) -> None:
    shown = gradiometer("replay", str(written(tmp_path / "run", "ends-not-masked")))
    assert shown.returncode == 0, shown.stderr
    assert "running on over the ends of episodes explain the update" in shown.stdout
    assert "160 samples" in shown.stdout


def test_json_is_one_object_with_every_recipe(tmp_path: Path) -> None:
    shown = gradiometer("replay", str(written(tmp_path / "run", "gae")), "--json")
    said = json.loads(shown.stdout)
    assert (said["checked"], said["wrong"], said["samples"]) == (True, None, 160)
    assert {each["recipe"] for each in said["fits"]} == set(RECIPES)


def test_the_doctor_says_it_too(tmp_path: Path) -> None:
    run = written(tmp_path / "run", "rewards-one-late")
    said = json.loads(gradiometer("doctor", str(run), "--json").stdout)
    first = said["findings"][0]
    assert (first["id"], first["severity"]) == ("recipe-mismatch", "critical")
    assert "one step late" in first["title"]


def test_targets_of_q_learning_have_their_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with Writer(tmp_path / "run") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
        for step in range(2):
            rewards, first, second = rng.normal(size=(3, 64))
            content = {
                "targets": (rewards + 0.9 * np.maximum(first, second)).tolist(),
                "rewards": rewards.tolist(),
                "ends": [0] * 64,
                "target": [first.tolist(), second.tolist()],
                "online": [],
                "critics": 2,
                "copies": 2,
                "has_target": True,
            }
            writer.put(Table(step=step, name="target-replay", content=content))
    shown = gradiometer("replay", str(tmp_path / "run"))
    assert shown.returncode == 0, shown.stderr
    first_line, rest = shown.stdout.split("\n", 1)
    assert "Targets with the larger value of both critics" in first_line
    assert "128 samples" in rest
    said = json.loads(gradiometer("replay", str(tmp_path / "run"), "--json").stdout)
    assert (said["wrong"], said["checked"]) == ("twins-largest", False)
    assert abs(said["fits"][0]["discount"] - 0.9) < 1e-6


def test_a_run_without_rollouts_is_told_what_keeps_them(tmp_path: Path) -> None:
    with Writer(tmp_path / "run") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
    shown = gradiometer("replay", str(tmp_path / "run"))
    assert shown.returncode == 2
    assert "gradiometer run" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_tables_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    with Writer(tmp_path / "run") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
        for step, content in enumerate(([1, 2], {"rewards": "x"}, {"rewards": [[1.0]]})):
            writer.put(Table(step=step, name="replay", content=content))
    assert gradiometer("replay", str(tmp_path / "run")).returncode == 2
