"""A file that Gradiometer 0.1.0 wrote is read, judged and continued
(tests/fixtures/make_run_0_1.py)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import gradiometer as gm
from gradiometer.records import Row
from gradiometer.store.writer import Writer

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_0_1"


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "run_0_1"))


def test_it_opens_without_a_change_to_the_file(old_run: Path) -> None:
    before = (old_run / "run.db").read_bytes()
    with gm.load(old_run) as run:
        assert run.facts["versions"]["gradiometer"] == "0.1.0"
        assert run.facts["schema_version"] == 1
        steps, rewards = run.series("reward")
        assert steps.tolist() == list(range(60))
        assert np.isfinite(rewards).all()
        assert "grad/all/norm/raw" in run.names()
    assert (old_run / "run.db").read_bytes() == before


def test_the_doctor_finds_in_it_what_is_wrong(old_run: Path) -> None:
    found = gm.diagnose(old_run)
    assert (found.findings[0].id, found.findings[0].since_step) == ("dead-term", 0)


def test_it_can_be_continued(old_run: Path) -> None:
    with gm.load(old_run) as run:
        before = run.series("reward")[1]
    with Writer(old_run, resume=59) as writer:
        writer.put(Row(step=60, wall_time=1.0, values={"reward": 0.5}))
    with gm.load(old_run) as run:
        assert run.verify() == []
        steps, rewards = run.series("reward")
    assert steps[-1] == 60
    np.testing.assert_array_equal(rewards[:-1], before)
