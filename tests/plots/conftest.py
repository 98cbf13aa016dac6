from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine

from gradiometer.plots.style import SETTINGS


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The made-up analysis, by file: tests are no package."""
    spec = importlib.util.spec_from_file_location(
        "synthetic", Path(__file__).with_name("synthetic.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn, but not laid out, which takes most of the time: for tests of the files."""
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda self, figure: None)
    monkeypatch.setitem(SETTINGS, "savefig.dpi", 40)
