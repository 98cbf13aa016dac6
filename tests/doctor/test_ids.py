"""Every finding id has a test; every fault has an id."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gradiometer.doctor.faultmap import FAULT_IDS
from gradiometer.doctor.rule import rules
from gradiometer.labs.faults import Fault, all_faults

IDS = {rule.id for rule in rules()}

HERE = Path(__file__).parent
ELSEWHERE = {"test_ids.py", "test_arbitration.py", "test_healthy.py", "test_source_case.py"}
"""Tests of everything together do not count as a rule's own."""


def test_an_id_is_words_with_hyphens_that_people_can_filter_by() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)+|truncation", id) for id in IDS)


def test_every_fault_of_the_catalogue_has_an_id_that_names_it() -> None:
    assert set(FAULT_IDS) == {f"F{number}" for number in range(1, 49)}
    for fault, ids in FAULT_IDS.items():
        assert ids, fault
        assert set(ids) <= IDS, fault


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: f"{fault.lab}/{fault.name}")
def test_a_fault_of_the_labs_expects_what_the_catalogue_names(fault: Fault) -> None:
    assert set(fault.expected) <= IDS
    if fault.catalogue in FAULT_IDS:
        assert set(fault.expected) & set(FAULT_IDS[fault.catalogue])


def named(tree: ast.Module) -> set[str]:
    """Every id that a test function names: in its body, in what it is parametrized with, or by a constant of its module."""
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=True) if several else [(target, value)]  # type: ignore[attr-defined]
            constants |= {name.id: held for name, held in pairs if isinstance(name, ast.Name)}
    found: set[str] = set()
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            used = [
                constants[part.id] for part in ast.walk(test) if isinstance(part, ast.Name) and part.id in constants
            ]
            parts = [part for root in (test, *used) for part in ast.walk(root)]
            found |= {part.value for part in parts if isinstance(part, ast.Constant) and part.value in IDS}
    return found


def test_every_id_has_a_test_of_its_own_that_names_it() -> None:
    found: set[str] = set()
    for file in HERE.glob("test_*.py"):
        if file.name not in ELSEWHERE:
            found |= named(ast.parse(file.read_text(encoding="utf-8")))
    assert IDS - found == set(), "ids that no test fires"
