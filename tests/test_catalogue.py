"""Telemetry that nobody produces is dead: every measured metric comes out of some run, and every series is known."""

from __future__ import annotations

import pytest

from gradiometer.labs import find
from gradiometer.labs.config import configure
from gradiometer.metrics import CATALOGUE, resolve
from gradiometer.store.reader import load

# Given to meter.log by trainers whose data the labs do not have yet (language models).
NOT_OF_A_LAB = {"kl_ref", "zero_variance_groups"}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    lab = find("cartpole")
    folder = tmp_path_factory.mktemp("lab") / "run"
    lab.train(configure(lab.config(), [f"run={folder}", "total_steps=3000", "every=1"]))
    return load(folder).names()


def test_every_metric_of_the_catalogue_is_produced(names: list[str]) -> None:
    produced = {found[0].name for name in names if (found := resolve(name))}
    assert set(CATALOGUE) - produced == NOT_OF_A_LAB


def test_every_series_of_a_run_is_in_the_catalogue(names: list[str]) -> None:
    assert [name for name in names if resolve(name) is None] == []
