"""What every test shares: quiet threads and a place of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves a run in the project, whatever it forgets to name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADIOMETER_DISABLED", raising=False)
