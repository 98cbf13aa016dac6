"""Imports point down, the core stands without the labs, and the reading arm never sees torch."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import gradiometer
import gradiometer_labs

SOURCE = Path(gradiometer.__file__).parent
LABS = Path(gradiometer_labs.__file__).parent

# Lower rooms first: a module may import from its own room and from those before it.
ROOMS = (
    ("version", "errors", "extras", "names", "words"),
    ("metrics", "records"),
    ("maths",),
    ("store",),
    ("doctor",),
    ("capture",),
    ("probes",),
    ("charts",),
    ("plots",),
    ("dashboard",),
    ("integrations",),
    ("demo", "mcp_server", "testing"),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
# The front door shows what lies behind it; the command line comes in through it.
DOORS = {"__init__", "__main__"}
FRAMEWORKS = {
    "torch",
    "gymnasium",
    "omegaconf",
    "matplotlib",
    "fastapi",
    "plotly",
    "wandb",
    "pandas",
}


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


def test_every_file_is_in_a_room_of_the_plan() -> None:
    assert {room_of(file) for file in FILES} <= LEVEL.keys() | DOORS


def test_imports_point_down() -> None:
    upward = [
        f"{file.relative_to(SOURCE)} reaches up into {other}"
        for file in FILES
        if room_of(file) not in DOORS
        for other in sorted(imported_rooms(file))
        if LEVEL[other] > LEVEL[room_of(file)]
    ]
    assert upward == []


def imported_when_loaded(file: Path) -> set[str]:
    """The modules a file imports when it is loaded itself: not in a function, not for types."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        nodes += [] if late or typing else ast.iter_child_nodes(node)
    return found


def test_the_core_is_loaded_without_the_labs() -> None:
    """They are a distribution of their own, so only a function that needs them imports them."""
    needs_labs = [
        file
        for file in FILES
        if any(name.partition(".")[0] == LABS.name for name in imported_when_loaded(file))
    ]
    assert needs_labs == []


def test_of_the_labs_only_their_commands_reach_into_the_command_line() -> None:
    labs = sorted(LABS.rglob("*.py"))
    reach = {file.relative_to(LABS).parts[0] for file in labs if "cli" in imported_rooms(file)}
    assert reach == {"cli"}


def test_the_guard_sees_what_is_imported_when_a_file_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "try:\n    import a.b\nexcept ImportError:\n    from c.d import e\n"
        "if TYPE_CHECKING:\n    import f\n"
        "def g():\n    import h\n"
        "class I:\n    import j\n"
    )
    assert imported_when_loaded(file) == {"a.b", "c.d", "j"}


def test_the_guard_sees_an_upward_import(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "def f():\n    from gradiometer.cli.main import main\n    from gradiometer import doctor\n"
    )
    assert imported_rooms(file) == {"cli", "doctor"}


READING = [
    "import gradiometer",
    "import gradiometer; gradiometer.load; gradiometer.Run; gradiometer.UsageError",
    "import gradiometer.cli.main",
    (
        "import gradiometer.cli.show, gradiometer.cli.metrics, gradiometer.cli.env,"
        " gradiometer_labs.cli.labs"
    ),
    "import gradiometer.cli.prune, gradiometer.cli.demo, gradiometer_labs.cli.train",
    (
        "import gradiometer.cli.compare, gradiometer.store.comparison, gradiometer.cli.serve,"
        " gradiometer.cli.run"
    ),
    "import gradiometer.charts.terms, gradiometer.charts.estimators, gradiometer.charts.experts",
    "import gradiometer.cli.plot, gradiometer.cli.figure, gradiometer.store.importers",
    "import gradiometer.cli.export, gradiometer.cli.import_, gradiometer.store.import_log",
    "import gradiometer.cli.experts, gradiometer.doctor.experts.judge, gradiometer.cli.audit",
    "import gradiometer.cli.doctor, gradiometer.doctor.live, gradiometer.charts.page",
    "from gradiometer.doctor.rule import rules; rules()",
    (
        "import gradiometer_labs, gradiometer_labs.faults, gradiometer.store.writer,"
        " gradiometer.store.reader"
    ),
]
NOTICE = """
import json, sys
told = {}
for statement in json.loads(sys.argv[1]):
    before = set(sys.modules)
    exec(statement)
    told[statement] = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
print(json.dumps(told))
"""


def test_the_reading_arm_imports_no_framework() -> None:
    """All in one process: whoever imports a framework first is named."""
    dashboard = "import gradiometer.dashboard.app"
    done = subprocess.run(
        [sys.executable, "-c", NOTICE, json.dumps([*READING, dashboard])],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {
        statement: FRAMEWORKS.intersection(found)
        for statement, found in json.loads(done.stdout).items()
    }
    assert loaded.pop(dashboard) == {"fastapi"}  # it draws without torch and matplotlib
    assert {statement: found for statement, found in loaded.items() if found} == {}


def test_no_file_is_called_utils() -> None:
    assert not [file for file in FILES if file.stem in ("utils", "helpers", "common", "misc")]


IMPORT = re.compile(r"^\s*(?:from ([\w.]+) )?import (.+)$", re.MULTILINE)


def imported_modules(file: Path) -> set[str]:
    """What a file may import; by its lines, since hundreds of files take seconds to parse."""
    found: set[str] = set()
    for package, names in IMPORT.findall(file.read_text(encoding="utf-8")):
        listed = {name.split()[0] for name in names.strip("()").split(",") if name.strip()}
        found |= {f"{package}.{name}" for name in listed} if package else listed
    return found


def test_mypy_skips_no_module_that_we_import(tmp_path: Path) -> None:
    project = SOURCE.parents[1]
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    modules = {
        how: tuple(
            name.removesuffix("*")
            for each in settings["mypy"]["overrides"]
            if each.get("follow_imports") == how
            for name in each["module"]
        )
        for how in ("skip", "normal")
    }

    def skipped(file: Path) -> set[str]:
        return {
            name
            for name in imported_modules(file)
            if f"{name}.".startswith(modules["skip"])
            and not f"{name}.".startswith(modules["normal"])
        }

    files = [f for root in settings["mypy"]["files"] for f in (project / root).rglob("*.py")]
    assert len(files) > 400
    assert not {(file.name, name) for file in files for name in skipped(file)}
    (tmp_path / "wrong.py").write_text(
        "def f():\n    from torch import fx\n    import peft.tuners as t\n"
    )
    assert skipped(tmp_path / "wrong.py") == {"torch.fx", "peft.tuners"}
