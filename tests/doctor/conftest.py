"""Runs whose truth is known, made for the doctor. The modules beside this one are found by file:
tests are no package."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from gradiometer.store.reader import Run


def _beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def planted() -> ModuleType:
    """The module planted.py: runs with experts."""
    return _beside("planted")


@pytest.fixture(scope="session")
def patients() -> ModuleType:
    """The module patients.py: `patient(folder, series, ...)` and `ar1(n, phi, sigma, seed)`."""
    return _beside("patients")


@pytest.fixture
def patient(tmp_path: Path, patients: ModuleType) -> Callable[..., Run]:
    """`patient({"reward": values, ...}, facts={...}, events=[...], tables=[...])`: a run on disk
    that holds exactly this."""
    return lambda series, **given: patients.patient(tmp_path, series, **given)
