"""The quick clinic, for real: it fails when a fault that is named today is not named any more, or a
control is accused."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradiometer.cli.main import run as run_command
from gradiometer_labs.clinic import grid

pytestmark = pytest.mark.slow

CALL = "import sys; from gradiometer.cli.main import main; sys.argv[0] = 'gradiometer'; main()"
CLINIC = ("clinic", "--quick", "--json", "--engine", "serial", "--out")
CHEAPEST = {
    "pendulum": ("critic_detached",),
    "prismatic": ("router_detached", "none"),
    "sparsify": ("entropy_no_grad",),
    "tsp": ("encoder_detached",),
}
"""Of the quick grid, one fault of each kind of wiring in the lab that trains it quickest."""


def test_the_cheapest_of_the_quick_clinic_are_named_and_the_control_is_not_accused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, setup in grid.SETUPS.items():
        quick = CHEAPEST.get(name, ())
        assert set(quick) <= set(setup.quick)
        monkeypatch.setitem(grid.SETUPS, name, dataclasses.replace(setup, quick=quick))
    assert run_command([*CLINIC, str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["by_fault"]) == 4
    assert found["healthy"]["runs"] == 1
    names_every_fault_and_accuses_no_control(found)


@pytest.mark.proof
def test_the_quick_clinic_names_every_fault_and_accuses_no_control(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALL, *CLINIC, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    found = json.loads(done.stdout)
    assert found["healthy"]["runs"] >= 3
    names_every_fault_and_accuses_no_control(found)


def names_every_fault_and_accuses_no_control(found: dict[str, Any]) -> None:
    missed = [
        f"{row['ward']}/{row['fault']}: {row['said']}"
        for row in found["by_fault"]
        if not all(row["top1"])
    ]
    assert not missed
    assert found["healthy"]["warned"] == []
    assert found["detection"]["wiring"]["5"]["share"] == 1.0, (
        "faults of the wiring show within five measured steps"
    )
