"""The training that runs on several ranks, found by file: tests are no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from gradiometer.maths import stats


@pytest.fixture(scope="session")
def ranked() -> ModuleType:
    """The module ranked.py: TRAINING, a script for the fixture `ranks`, and comparisons of the runs
    it leaves."""
    spec = importlib.util.spec_from_file_location("ranked", Path(__file__).with_name("ranked.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is the host's own, whose memory numpy may read without waiting for anybody."""
    monkeypatch.setattr(stats, "HOST", ())
