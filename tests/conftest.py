"""What every test shares: quiet threads and a place of its own."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

# A CI that starts us in the background has SIGINT ignored, and every child inherits that: tests that interrupt a real
# process would wait for ever.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves a run in the project, whatever it forgets to name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADIOMETER_DISABLED", raising=False)
