from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from gradiometer.records import Event, Row, Table, Vector
from gradiometer.store.writer import Writer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def written(template: Path, folder: Path) -> Path:
    """A finished run with something in every table."""
    return shutil.copytree(template, folder)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attack") / "run"
    rng = np.random.default_rng(0)
    with Writer(folder, facts={"seed": 7, "config": {"lr": 0.1}}) as writer:
        for step in range(1500):
            values = {"loss": float(rng.normal()), "reward": float(step), "entropy": 0.5}
            writer.put(Row(step=step, wall_time=1e9 + step, values=values, env_steps=8 * step))
        for step in range(0, 1500, 100):
            writer.put(Table(step=step, name="states", content={"net.0": "finite"}))
            writer.put(Vector(step=step, name="sketch/all", values=rng.normal(size=64)))
            writer.put(Event(step=step, kind="nonfinite", message=f"a NaN at {step}"))
    return folder
