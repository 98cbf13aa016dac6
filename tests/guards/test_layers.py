"""Imports point down, and the reading arm never sees torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gradiometer

SOURCE = Path(gradiometer.__file__).parent

# Lower rooms first: a module may import from its own room and from those before it.
ROOMS = (
    ("version", "errors", "extras", "words"),
    ("metrics", "records"),
    ("maths",),
    ("store",),
    ("doctor",),
    ("capture",),
    ("probes",),
    ("plots",),
    ("dashboard",),
    ("integrations",),
    ("labs",),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
# The front door shows what lies behind it; the labs and the command line come in through it.
DOORS = {"__init__", "__main__"}
FRAMEWORKS = {"torch", "gymnasium", "omegaconf", "matplotlib", "fastapi", "plotly", "wandb", "pandas"}


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "gradiometer":
            found |= {alias.name for alias in node.names if alias.name in LEVEL}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradiometer."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("gradiometer.")}
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_down(file: Path) -> None:
    room = room_of(file)
    if room in DOORS:
        return
    assert room in LEVEL, f"{file} is in no room of the plan"
    upward = {other for other in imported_rooms(file) if LEVEL[other] > LEVEL[room]}
    assert not upward, f"{file} reaches up into {upward}"


def test_the_guard_sees_an_upward_import(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from gradiometer.cli.main import main\n    from gradiometer import labs\n")
    assert imported_rooms(file) == {"cli", "labs"}


@pytest.mark.parametrize(
    "statement",
    [
        "import gradiometer",
        "import gradiometer; gradiometer.load; gradiometer.Run; gradiometer.UsageError",
        "import gradiometer.cli.main",
        "import gradiometer.cli.show, gradiometer.cli.metrics, gradiometer.cli.env, gradiometer.cli.labs",
        "import gradiometer.cli.prune, gradiometer.cli.train, gradiometer.cli.demo",
        "import gradiometer.cli.compare, gradiometer.store.comparison, gradiometer.cli.serve, gradiometer.cli.run",
        "import gradiometer.cli.plot, gradiometer.cli.figure, gradiometer.store.importers",
        "import gradiometer.cli.export, gradiometer.cli.import_, gradiometer.store.intake",
        "import gradiometer.cli.experts, gradiometer.doctor.experts.judge, gradiometer.cli.audit",
        "import gradiometer.cli.doctor, gradiometer.doctor.live, gradiometer.doctor.report.page",
        "from gradiometer.doctor.rule import rules; rules()",
        "import gradiometer.labs, gradiometer.labs.faults, gradiometer.store.writer, gradiometer.store.reader",
    ],
)
def test_the_reading_arm_imports_no_framework(statement: str) -> None:
    code = f"import sys; {statement}; print(' '.join(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not FRAMEWORKS & set(loaded)


def test_the_dashboard_draws_without_torch_and_matplotlib() -> None:
    code = "import sys, gradiometer.dashboard.app; print(' '.join({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not (FRAMEWORKS - {"fastapi"}) & set(loaded)


def test_no_file_is_called_utils() -> None:
    assert not [file for file in FILES if file.stem in ("utils", "helpers", "common", "misc")]
