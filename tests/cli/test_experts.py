"""`gradiometer experts` as a user types it: every call is a real process."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest
from forkserver import Done, python

from gradiometer.doctor.experts.answers import SENTENCES
from gradiometer.records import Event, Row
from gradiometer.store.writer import Writer

PLAIN = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "80", "OMP_NUM_THREADS": "1"}


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


@pytest.fixture(scope="module")
def planted() -> ModuleType:
    """Runs whose truth is known, by file: tests are no package."""
    spec = importlib.util.spec_from_file_location(
        "planted", Path(__file__).parents[1] / "doctor" / "planted.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path: Path, planted: ModuleType) -> Path:
    rows = planted.routed(
        planted.planted(), "all", balance=0.96, load={"0": 0.5, "1": 0.3, "2": 0.2}, grad=0.02
    )
    written: Path = planted.write(tmp_path / "smear", rows, {"config": {"perturbation_scale": 1.0}})
    return written


def test_the_three_questions_fit_on_a_screen(run: Path) -> None:
    shown = gradiometer("experts", str(run))
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("smear: 3 experts, 200 measured steps, 0 to 1990; compared with")
    for question, said in (
        ("1. Do the smallest weights begin to learn?", "not waking up"),
        ("2. Do the experts really learn different things?", "explained by routing"),
        ("3. Does the difference last?", "converged"),
    ):
        assert lines[lines.index(question) + 1].strip() == SENTENCES[said]
    assert "small routing alike" in shown.stdout
    assert "expert 0 has 50%, expert 2 20%: even" in " ".join(shown.stdout.split())
    assert "2.0 or higher (now 1)" in " ".join(shown.stdout.split())
    assert "\x1b" not in shown.stdout


def test_json_is_one_object_with_every_number(run: Path) -> None:
    shown = gradiometer("experts", str(run / "run.db"), "--json", "--since", "500")
    answers = json.loads(shown.stdout)
    assert answers["run"].endswith("run.db")
    assert (answers["first_step"], answers["last_step"], answers["points"]) == (500, 1990, 150)
    assert answers["divergence"]["verdict"] == "explained by routing"
    assert answers["waking"]["experts"] == {"1": "not waking up", "2": "not waking up"}
    (size,) = [
        number
        for number in answers["divergence"]["numbers"]
        if number["expert"] == "2" and number["name"].startswith("log norm_per_weight")
    ]
    assert size["unit"] == "nats"
    assert size["low"] <= size["value"] <= size["high"]


def test_many_experts_are_cut_to_the_strangest(tmp_path: Path, planted: ModuleType) -> None:
    rows = planted.planted(weights=(1 / 16,) * 16, points=60, cosine=0.5, token_routed=True)
    for row in rows.values():
        row.update(
            {
                name: 3 * value
                for name, value in row.items()
                if name.endswith("expert/11/bottom_rms")
            }
        )
    shown = gradiometer("experts", str(planted.write(tmp_path / "moe", rows)))
    assert SENTENCES["waking up"] in shown.stdout
    assert "in expert 11 of 15" in " ".join(shown.stdout.split())
    below_the_rule = shown.stdout.rpartition("───")[2].splitlines()
    assert below_the_rule[1].split()[0] == "11"
    assert "7 more experts" in shown.stdout
    assert len(shown.stdout.splitlines()) <= 42


def test_a_log_of_the_sources_columns_is_read_too(tmp_path: Path, planted: ModuleType) -> None:
    rows = planted.only(
        planted.planted(points=40), "top_norm", "bottom_norm", "middle_norm", "divergence"
    )
    log = tmp_path / "old.jsonl"
    log.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step, row in rows.items()))
    shown = gradiometer("experts", str(log))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count(SENTENCES["undecided"]) == 3
    assert "missing:  grad/expert/1/cos_to_0" in shown.stdout


def test_a_run_without_experts_is_the_users_to_mend(tmp_path: Path) -> None:
    with Writer(tmp_path / "plain") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"reward": 1.0}))
        writer.put(
            Event(step=0, kind="experts-missing", message="3 experts, and none had a gradient")
        )
    failed = gradiometer("experts", str(tmp_path / "plain"))
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert "found 1 others: reward" in failed.stderr
    assert "The run says: 3 experts, and none had a gradient" in failed.stderr
    assert "Traceback" not in failed.stderr
