"""`gradiometer clinic`: what a user sees, also of mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradiometer.cli.main import run as run_command

EVERYTHING = {
    "accuracy",
    "healthy",
    "detection",
    "precision",
    "confusion",
    "confusable",
    "by_fault",
    "doses",
    "doubles",
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--labs", "cartpol"], "did you mean 'cartpole'"),
        (["--faults", "entropy_nograd"], "did you mean 'entropy_no_grad'"),
        (["--quick", "--labs", "tsp"], "--quick has its own patients"),
        (["--labs", "tsp", "--faults", "router_detached"], "unknown fault 'router_detached'"),
        (["--faults", "entropy_no_grad", "--engine", "threads"], "engine is one of"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_command(["clinic", "--out", str(tmp_path / "out"), *arguments]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert not (tmp_path / "out" / "clinic.json").exists()


@pytest.mark.slow
def test_some_patients_are_trained_judged_counted_and_written_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradiometer_labs.clinic import grid

    monkeypatch.setitem(grid.SETUPS, "prismatic", _shortened(grid.SETUPS["prismatic"]))
    page = tmp_path / "docs" / "clinic.md"
    page.parent.mkdir()
    call = [
        "clinic",
        "--labs",
        "prismatic",
        "--faults",
        "router_detached",
        "--seeds",
        "1",
        "--engine",
        "serial",
    ]
    assert (
        run_command([*call, "--out", str(tmp_path / "out"), "--report", str(page), "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert set(found) > EVERYTHING
    assert found["by_fault"][0]["fault"] == "router_detached"
    assert json.loads((tmp_path / "out" / "clinic.json").read_text()) == found
    text = page.read_text()
    assert "| router_detached (F46)" in text.replace("prismatic | ", "| ")
    assert "**missed**" in text, "one patient cannot meet the targets"
    assert (tmp_path / "docs" / "pictures" / "clinic.png").stat().st_size > 10_000


def _shortened(setup):  # type: ignore[no-untyped-def]
    import dataclasses

    return dataclasses.replace(setup, overrides=(*setup.overrides, "steps=20"))
