"""The numbers of the rules stand in one file, each with its reason, and can be tried otherwise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gradiometer.doctor import outcome, thresholds
from gradiometer.doctor.thresholds import THRESHOLDS, overridden, value

DOCTOR = Path(outcome.__file__).parent
FILES = {"signs": "signs.py", "course": "outcome.py", "state": "state.py", "severity": "rule.py"}


def _source(group: str) -> str:
    return (DOCTOR / FILES.get(group, f"rules/{group}.py")).read_text(encoding="utf-8")


def test_every_threshold_says_why() -> None:
    silent = [name for name, each in THRESHOLDS.items() if len(each.source) < 10]
    assert not silent
    assert all(each.trades for each in THRESHOLDS.values())


@pytest.mark.parametrize("group", sorted({name.partition("/")[0] for name in THRESHOLDS}))
def test_every_threshold_is_read(group: str) -> None:
    source = _source(group)
    names = [name.partition("/")[2] for name in THRESHOLDS if name.startswith(f"{group}/")]
    unread = [
        name for name in names if not re.search(rf"\blimits\.{name}\b|\b{group}/{name}\b", source)
    ]
    assert not unread


def _numbers(path: Path) -> list[str]:
    """Names of a module that are bound to plain numbers."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            target = node.targets[0]
            if isinstance(node.value.value, int | float) and isinstance(target, ast.Name):
                found.append(target.id)
    return found


def test_no_rule_keeps_a_number_of_its_own() -> None:
    kept = {path.name: _numbers(path) for path in sorted((DOCTOR / "rules").glob("*.py"))}
    assert not {name: numbers for name, numbers in kept.items() if numbers}


def test_an_override_holds_in_its_block_and_no_longer() -> None:
    before, edition = value("exploration/collapsed"), thresholds.edition()
    with pytest.raises(ZeroDivisionError), overridden({"exploration/collapsed": 0.5}):
        assert value("exploration/collapsed") == thresholds.group("exploration").collapsed == 0.5
        assert thresholds.edition() == edition  # the outcome does not depend on it
        raise ZeroDivisionError
    assert value("exploration/collapsed") == before
    with overridden({"course/min_gain": 0.5}):
        assert thresholds.edition() != edition


def test_a_count_stays_a_whole_number() -> None:
    with overridden({"exploration/min_held": 12.0}):
        assert str(value("exploration/min_held")) == "12"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(KeyError, match=r"thresholds\.toml"):
        value("exploration/nothing")
    with pytest.raises(AttributeError, match="nothing"):
        _ = thresholds.group("exploration").nothing
