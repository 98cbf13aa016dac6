"""Where a lab's numbers go besides its run: sinks are a setting of every lab, and W&B's rows come
back at the steps they were measured at."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer.store.exporters import export_dynamics
from gradiometer.store.formats.wandb import at_our_steps, open_wandb
from gradiometer_labs import LABS, find
from gradiometer_labs.config import configure

SCRIPT = Path(__file__).parents[1] / "scripts/runs/run_sokoban_ppo_filter_grad_analysis.sh"
TINY = [
    "model.hidden_size=32",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.intermediate_size=32",
    "env.max_turns=3",
    "warm_start.steps=20",
    "warm_start.batch_size=16",
    "warm_start.num_levels=64",
    "es_manager.train.env_groups=4",
    "es_manager.train.group_size=8",
    "trainer.total_training_steps=5",
    "trainer.gradient_analysis_every=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
]


@pytest.mark.parametrize("name", list(LABS))
def test_sinks_are_a_setting_of_every_lab(name: str) -> None:
    config = configure(find(name).config(), ["sinks=[jsonl,tensorboard]"])
    assert config.trackers == ["jsonl", "tensorboard"]
    with pytest.raises(UsageError, match="tensorboard"):
        configure(find(name).config(), ["sinks=[tensorbord]"])


def test_the_sources_logger_project_and_experiment_name_a_wandb_run() -> None:
    given = ["trainer.logger=['console','wandb']", "trainer.project_name=ragen"]
    config = configure(find("sokoban").config(), [*given, "trainer.experiment_name=topp09"])
    assert config.trackers == [gm.sinks.wandb(project="ragen", run_name="topp09")]
    assert "trainer.project_name" not in config.no_effect(given)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="W&B is not installed")
def test_a_lab_that_trains_into_wandb_is_read_back_at_the_steps_of_its_analyses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    settings = wandb.setup().settings  # those of the whole process: another test may have made them
    monkeypatch.setattr(settings, "root_dir", str(tmp_path))
    monkeypatch.setattr(settings, "mode", "offline")
    lab = find("sokoban")
    given = ["trainer.logger=['console','wandb']", "trainer.experiment_name=steps"]
    lab.train(configure(lab.config(), [*TINY, *given, f"run={tmp_path / 'run'}"]))
    log, kept = open_wandb(str(tmp_path / "wandb")), gm.load(tmp_path / "run")
    name = "grad_norm/all/task"
    assert len(kept.series(name)[0]) > 1
    assert list(log.series(name)[0]) == list(kept.series(name)[0])
    assert list(log.series("reward")[0]) == list(kept.series("reward")[0])
    assert log.facts["imported"]["project"] == "gradiometer"
    assert log.name == "steps"


def test_rows_of_the_users_loop_keep_wandbs_step_and_ours_take_their_own() -> None:
    rows = [
        (0, {"gradiometer/step": 0, "grad/all/norm/raw": 1.0}),
        (1, {"loss": 0.5}),
        (2, {"loss": 0.4, "gradiometer/step": 20, "grad/all/norm/raw": 2.0}),
    ]
    assert at_our_steps(rows) == [
        (0, {"grad/all/norm/raw": 1.0}),
        (1, {"loss": 0.5}),
        (2, {"loss": 0.4}),
        (20, {"grad/all/norm/raw": 2.0}),
    ]


def run_script(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With a command that says what it was given in the place of ours."""
    said = tmp_path / "gradiometer"
    said.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$CUDA_VISIBLE_DEVICES" "$@"\n')
    said.chmod(0o755)
    environment = {**os.environ, "GRADIOMETER": str(said), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip


def test_the_presets_script_takes_steps_and_gpus(tmp_path: Path) -> None:
    done = run_script(tmp_path, "--steps", "1", "--gpus", "0,1,2", "run=null")
    devices, *words = done.stdout.splitlines()
    assert (done.returncode, devices, words[:2]) == (0, "0,1,2", ["train", "sokoban"])
    config = configure(find("sokoban").config(), words[2:])
    assert config.preset == "grad_analysis"
    assert config.trainer.total_training_steps == 1
    assert config.trainer.n_gpus_per_node == 3
    assert config.system.CUDA_VISIBLE_DEVICES == "0,1,2"
    assert run_script(tmp_path, "--step", "1").returncode == 2


@pytest.mark.slow
def test_dynamics_db_is_written_while_the_experts_train_and_is_the_one_that_export_writes(
    tmp_path: Path,
) -> None:
    lab, run, seen = find("prismatic"), tmp_path / "run", []
    given = [f"run={run}", "steps=40", "every=5", "dynamics_db=true"]

    def look(_: object) -> None:
        if (run / "dynamics.db").exists():
            seen.append(len(rows_of(run / "dynamics.db")))

    lab.train(configure(lab.config(), given), look)
    first = next(filter(None, seen), 0)  # the file is there a moment before its first rows
    assert 0 < first < len(rows_of(run / "dynamics.db"))  # it grew meanwhile
    with gm.load(run) as kept:
        export_dynamics(kept, tmp_path / "exported.db")
    assert rows_of(run / "dynamics.db") == rows_of(tmp_path / "exported.db")


def rows_of(path: Path) -> list[dict[str, float]]:
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        there = db.execute("SELECT name FROM sqlite_master WHERE name = 'dynamics'").fetchall()
        return (
            [dict(row) for row in db.execute("SELECT * FROM dynamics ORDER BY step")]
            if there
            else []
        )
