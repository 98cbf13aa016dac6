"""What CONTRIBUTING.md promises: a file that is put into its room is found, and no list elsewhere
must be told of it."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradiometer
import gradiometer_labs
from gradiometer import extras
from gradiometer.capture import statistics
from gradiometer.capture.statistics import Statistic
from gradiometer.dashboard.views import VIEWS
from gradiometer.store.sinks import KNOWN
from gradiometer_labs import LABS

SOURCE = Path(gradiometer.__file__).parent
LABS_SOURCE = Path(gradiometer_labs.__file__).parent
ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]["optional-dependencies"]


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def public(file: Path) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in tree(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


# A statistic


def test_every_number_that_is_read_of_a_parameter_is_an_entry_of_the_table() -> None:
    """Where the ranks, the blocks and the names find it; tests/capture/test_statistics.py follows
    each entry there."""
    made = [each for each in vars(statistics).values() if isinstance(each, Statistic)]
    assert [each.name for each in made if each not in statistics.STATISTICS] == []
    assert len({each.name for each in made}) == len(made) == len(statistics.STATISTICS) > 10
    for file in (SOURCE / "capture").glob("*.py"):
        calls = [node for node in ast.walk(tree(file)) if isinstance(node, ast.Call)]
        home = file.name == "statistics.py"
        assert home or "Statistic" not in [getattr(call.func, "id", "") for call in calls], file
        columns = [
            call.args[0]
            for call in calls
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("add", "add_column")
            if call.args
        ]
        assert not [arg for arg in columns if isinstance(arg, ast.Constant)], file


# A rule


def test_no_two_helpers_of_the_doctor_have_one_name() -> None:
    nodes = [node for file in (SOURCE / "doctor").rglob("*.py") for node in public(file)]
    found = Counter(node.name for node in nodes if isinstance(node, ast.FunctionDef))
    assert [name for name, count in found.items() if count > 1] == []


# A trainer


def trainers() -> list[Path]:
    """The files that stand for a trainer: they import it, and say which extra has it."""
    files = sorted((SOURCE / "integrations").glob("*.py"))
    return [file for file in files if "raise MissingExtra(" in file.read_text(encoding="utf-8")]


@pytest.mark.parametrize("file", trainers(), ids=lambda file: file.stem)
def test_a_trainer_has_an_extra_of_its_name_a_guide_and_an_example_of_its_callback(
    file: Path,
) -> None:
    assert file.stem in EXTRAS
    assert file.stem in " ".join(EXTRAS["dev"])
    callback = any(node.name.startswith("Gradiometer") for node in public(file))
    wanted = f"gradiometer.integrations.{file.stem} import" if callback else file.stem
    assert any(
        wanted in page.read_text(encoding="utf-8")
        for page in (ROOT / "docs" / "guide").glob("*.md")
    )
    assert not callback or any(
        wanted in each.read_text(encoding="utf-8") for each in (ROOT / "examples").glob("*.py")
    )


def test_integrations_come_in_through_the_meter_s_door() -> None:
    """None of what the meter keeps for itself is reached for, by an attribute or by its name in a
    string."""
    kept = re.findall(
        r"self\.(_\w+)\b[^=\n]*=", (SOURCE / "capture" / "meter.py").read_text(encoding="utf-8")
    )
    assert {"_observer", "_analysis", "_writer"} <= set(kept)
    for file in (SOURCE / "integrations").rglob("*.py"):
        nodes = list(ast.walk(tree(file)))
        reached = {
            n.attr
            for n in nodes
            if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") != "self"
        }
        asked = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        assert not set(kept) & (reached | asked), file


def test_the_extras_are_what_pyproject_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f'{each}; extra == "{extra}"' for extra, listed in EXTRAS.items() for each in listed]
    monkeypatch.setattr(extras, "_requires", lambda: ["numpy>=1.26", *lines])
    found = extras.extras.__wrapped__()
    assert found["core"] == ("numpy",)
    assert found["sb3"] == ("torch", "stable-baselines3")
    assert set(found) == {"core", *EXTRAS} - {"trackers", *extras.COLLECTIONS}


# A sink


@pytest.mark.parametrize(
    "file",
    sorted(file for file in (SOURCE / "store" / "sinks").glob("?*sink.py")),
    ids=lambda file: file.stem,
)
def test_every_sink_is_known_by_its_name_and_told_of(file: Path) -> None:
    name = file.stem.removesuffix("sink")
    assert KNOWN[name].__module__.endswith(f".{file.stem}")
    assert f"| `{name}` |" in (ROOT / "docs" / "guide" / "trackers.md").read_text(encoding="utf-8")


# A lab, a fault


def test_every_folder_that_trains_is_a_lab_with_faults_and_a_page() -> None:
    folders = {
        file.parent.name for file in LABS_SOURCE.glob("*/train.py") if file.parent.name != "cli"
    }
    assert folders == set(LABS)
    guide = (ROOT / "docs" / "guide" / "labs.md").read_text(encoding="utf-8")
    for name, lab in LABS.items():
        assert {setup.lab for setup in lab.clinic_setups} == {name}
        assert any(
            (LABS_SOURCE / name / place).exists() for place in ("faults.py", "faults/__init__.py")
        )
        assert f"\n## {name}\n" in guide


def test_nothing_outside_its_folder_imports_a_lab() -> None:
    """But for what is about that lab: what all labs have is reached by LABS."""
    about_one = {"tsp": {"gradiometer/cli/variance.py"}}
    packages = (SOURCE, LABS_SOURCE)
    files = [(file, package) for package in packages for file in package.rglob("*.py")]
    for file, package in files:
        place = file.relative_to(package.parent).as_posix()
        named = set(re.findall(r"gradiometer_labs\.(\w+)", file.read_text(encoding="utf-8"))) & set(
            LABS
        )
        strangers = {
            lab
            for lab in named
            if not place.startswith(f"gradiometer_labs/{lab}/")
            and place not in about_one.get(lab, ())
        }
        assert strangers == set(), place


# A chart, a tab


def test_every_tab_is_a_file_is_routed_and_is_on_the_page() -> None:
    files = {file.stem: file for file in (SOURCE / "dashboard" / "views").glob("*.py")}
    made = {stem for stem, file in files.items() if any(node.name == stem for node in public(file))}
    assert made == set(VIEWS)
    script = (SOURCE / "dashboard" / "static" / "state.js").read_text(encoding="utf-8")
    (tabs,) = re.findall(r"export const TABS = (\[[^\]]*\])", script)
    assert json.loads(tabs) == list(VIEWS)
