"""Every finding id has one rule, a place in the table of consequences, and a test; every fault has an id."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gradiometer.doctor.consequences import IDS
from gradiometer.doctor.faultmap import FAULT_IDS
from gradiometer.doctor.rule import rules
from gradiometer.labs.faults import Fault, all_faults

FAMILIES = {
    "numbers": "nonfinite-gradient exploding-gradient vanishing-gradient gradient-spikes zero-gradient-steps depth-imbalance "
    "dormant-units",
    "wiring": "dead-term hidden-term dead-block not-in-optimizer score-not-zero-mean actions-ignore-policy "
    "entropy-of-wrong-distribution gradient-not-invariant kl-gradient-wrong clip-before-unscale sampler-mismatch",
    "clipping": "clip-always-active over-clipping",
    "balance": "critic-dominates regulariser-dominates terms-conflict head-collapse",
    "exploration": "entropy-collapse entropy-never-falls action-collapse exploration-schedule",
    "critic": "critic-explains-nothing baseline-leak critic-diverges returns-wrong target-network",
    "signal": "groups-too-easy groups-too-hard noise-dominated reward-unreliable advantage-outliers advantage-scale "
    "reward-scale template-collapse",
    "stepsize": "step-too-large policy-frozen kl-runaway kl-strangled ratio-explosion ppo-clip-saturated stale-data",
    "outcome": "reward-plateau reward-declining update-opposes-reward reward-hacking length-exploit truncation "
    "reward-term-dominates",
    "data": "observation-scale misaligned-data",
    "history": "gradient-drift gradient-oscillation direction-random",
    "modules": "module-dormant module-saturated host-dominates loss-not-reaching-module",
    "experts": "expert-starved expert-dominates router-untrained experts-converged routing-imbalance",
}
FAMILY = {id: family for family, ids in FAMILIES.items() for id in ids.split()}
"""The ids of DESIGN section 6: stable, because people filter by them."""

HERE = Path(__file__).parent
ELSEWHERE = {"test_ids.py", "test_arbitration.py", "test_healthy.py", "test_source_case.py"}
"""Tests of everything together do not count as a rule's own."""


def test_every_id_has_exactly_one_rule_and_every_rule_an_id() -> None:
    made = [rule.id for rule in rules()]
    assert len(made) == len(set(made))
    assert set(FAMILY) - set(made) == set(), "ids without a rule"
    assert set(made) - set(FAMILY) == set(), "rules without an id"


def test_a_rule_lives_in_the_file_of_its_family() -> None:
    """A family too large for one module goes on in others that begin with its name: wiring_terms."""
    strays = {
        rule.id: rule.judge.__module__ for rule in rules() if rule.family.partition("_")[0] != FAMILY.get(rule.id)
    }
    assert strays == {}


def test_arbitration_knows_exactly_these_ids() -> None:
    assert set(FAMILY) == IDS


def test_every_fault_of_the_catalogue_has_an_id_that_names_it() -> None:
    assert set(FAULT_IDS) == {f"F{number}" for number in range(1, 49)}
    for fault, ids in FAULT_IDS.items():
        assert ids, fault
        assert set(ids) <= set(FAMILY), fault


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: f"{fault.lab}/{fault.name}")
def test_a_fault_of_the_labs_expects_what_the_catalogue_names(fault: Fault) -> None:
    assert set(fault.expected) <= set(FAMILY)
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
            found |= {part.value for part in parts if isinstance(part, ast.Constant) and part.value in FAMILY}
    return found


def test_every_id_has_a_test_of_its_own_that_names_it() -> None:
    found: set[str] = set()
    for file in HERE.glob("test_*.py"):
        if file.name not in ELSEWHERE:
            found |= named(ast.parse(file.read_text(encoding="utf-8")))
    assert set(FAMILY) - found == set(), "ids that no test fires"
