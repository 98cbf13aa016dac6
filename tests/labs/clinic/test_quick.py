"""The quick clinic, for real: it fails when a fault that is named today is not named any more, or a control is accused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CALL = "import sys; from gradiometer.cli.main import main; sys.argv[0] = 'gradiometer'; main()"


@pytest.mark.slow
def test_the_quick_clinic_names_every_fault_and_accuses_no_control(tmp_path: Path) -> None:
    arguments = ["clinic", "--quick", "--json", "--engine", "serial", "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", CALL, *arguments], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    found = json.loads(done.stdout)
    missed = [f"{row['ward']}/{row['fault']}: {row['said']}" for row in found["by_fault"] if not all(row["top1"])]
    assert not missed
    assert found["healthy"]["warned"] == []
    assert found["healthy"]["runs"] >= 3
    assert found["detection"]["wiring"]["5"]["share"] == 1.0, "faults of the wiring show within five measured steps"
